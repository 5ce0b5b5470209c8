#pragma once

// A profile that nobody measured: of layers that say what they take without being run (LayerFacts::estimate). For
// models larger than any memory at hand. Kept bytes are exact, transients are an estimate (layer_estimate.h),
// times are those of two rates.

#include "models/losses/loss.h"
#include "models/model.h"
#include "partitioner/plan/profile.h"

#include <cstdint>
#include <string>
#include <vector>

namespace stagecraft {

struct EstimateRequest {
  std::vector<std::int64_t> micro_batch_sizes;
  double flops_per_second = 0;  ///< that products reach; a multiply-add is two
  double bytes_per_second = 0;  ///< that everything else moves
  /// What a data set yields per sample, apart from the inputs, which the model says.
  Bytes read_per_sample, targets_per_sample;
  std::vector<FieldBytes> fields_per_sample;
  std::string optimizer;
  double optimizer_bytes_per_parameter_byte = 0;
};

/// Names of the layers that have no estimate, since only a run can tell.
[[nodiscard]] std::vector<std::string> not_estimated(const Model& model);

/// Each operator takes the longer of two times: its operations at the one rate, its bytes at the other. The
/// loss is run, on a few tokens or samples, for its bytes. Requires that not_estimated() is empty. Installs the
/// counting allocator.
[[nodiscard]] Profile estimate_profile(const Model& model, const Loss& loss, const EstimateRequest& request);

}  // namespace stagecraft
