#pragma once

// A profile of the run's own model, as `train` makes one where no plan is given.

#include "engine/run/resolve/training_inputs.h"
#include "engine/transport/transport.h"
#include "partitioner/plan/profile.h"

#include <string>

namespace stagecraft {

/// Measures the model's layers on this process, as config.profiler says, at its micro-batch sizes and the
/// run's, with `threads` operator threads. `file` names the config. Throws RefusedError before anything large
/// is allocated where the memory cannot hold what it measures.
[[nodiscard]] Profile quick_profile(const RunConfig& config, const std::string& file,
                                    const TrainingInputs& inputs, int threads, at::Device device);

/// Whether quick_profile() of these would measure the same as `profile` has, times apart.
[[nodiscard]] bool is_of_run(const Profile& profile, const RunConfig& config, const TrainingInputs& inputs,
                             int threads, at::Device device);

/// The rates that an estimated profile is made at.
struct EstimateRates {
  double flops_per_second = 0;
  double bytes_per_second = 0;
};

/// The same without running the model, for one of any size (profiler/profile_estimate.h). Throws InputError
/// where it has layers that say nothing of what they take.
[[nodiscard]] Profile estimated_profile(const RunConfig& config, const std::string& file,
                                        const TrainingInputs& inputs, const EstimateRates& rates);

/// The mean of all ranks' times, row by row: cores of one machine differ, and a stage may land on any of
/// them. Collective; every rank measured the same model at the same sizes.
[[nodiscard]] Profile mean_over_ranks(Profile profile, Transport& transport);

}  // namespace stagecraft
