#pragma once

// The profiler: what every layer of a model costs on this machine, now. Layers are timed where they stand in
// the chain, forward through all of them and back, with two micro-batches in flight as a pipeline has, so
// that caches are as warm as in a run and not as warm as in a loop over one layer.

#include "engine/device/graphs.h"
#include "models/losses/loss.h"
#include "models/model.h"
#include "partitioner/plan/profile.h"
#include "profiler/chain.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace stagecraft {

struct ProfileRequest {
  std::vector<std::int64_t> micro_batch_sizes;  ///< at least one, all at least 1
  int repeats = 100;
  int representatives = 3;  ///< layers with equal graphs that are run (layer_classes.h); 0: all
  Seconds warmup{0.5};  ///< passes thrown away first, one at least, until clocks and caches are as in a run
  /// For each micro-batch size; when it is spent there are fewer repeats, but never less than three.
  Seconds budget{60};
  std::uint64_t seed = 0;
  /// What runs the layers: their times, and the bytes that its allocator is asked for. No layer runs elsewhere.
  at::Device device = at::kCPU;
  /// What records passes on the device, as in a run (cuda.graphs): then times are of recordings, if it can record
  /// all rows. Null: of operators that are launched one by one.
  std::shared_ptr<DeviceGraphs> graphs{};
  /// `size` samples, in the CPU's memory; `index` tells one micro-batch from the next.
  std::function<ChainInput(std::int64_t size, int index)> data;

  // The optimizer, if step times are wanted. step_transient is measured with them: what a product takes for
  // itself depends on the processor and on the threads, or on the GPU.
  std::string optimizer;
  double optimizer_bytes_per_parameter_byte = 0;
  /// One update of one layer; its learning rate should be 0, so that the weights stay what they are.
  Chain::Update update;
  /// Passes from one update of all layers to the next, as many as the run's steps have micro-batches: an
  /// update streams weights and optimizer state through the caches that the passes use. There is one update
  /// at least.
  int passes_per_update = 1;
};

/// Runs on the calling thread, with the operator threads it has; `threads`, `busy_ranks` and `link` are left
/// to the caller. The last row is "loss". Installs the counting allocator.
[[nodiscard]] Profile profile_model(const Model& model, const Loss& loss, const ProfileRequest& request);

}  // namespace stagecraft
