#pragma once

// From a config to a plan: the one it names, checked against the model, or one that is made now from a quick
// profile of this machine. Used by `train`, and by `plan` and `check` where they are given a config.

#include "engine/run/resolve/training_inputs.h"
#include "engine/transport/transport.h"
#include "partitioner/plan/cluster.h"
#include "partitioner/plan/plan.h"
#include "partitioner/plan/profile.h"
#include "partitioner/search/planner.h"

#include <optional>
#include <string>
#include <vector>

namespace stagecraft {

/// The ranks that a launcher started, a process each.
struct World {
  int ranks = 1;
  int on_this_machine = 1;
};

struct ResolvedPlan {
  Plan plan;
  std::optional<Profile> profile;  ///< measured for a plan made now
  int threads = 1;                 ///< of a rank: rank_threads() of the plan's stages
  std::vector<std::string> notes;  ///< for people
};

/// `plan_path` (--plan) goes before the config's pipeline.plan. `world`: absent without a launcher, when
/// ranks are as many as the plan wants. Throws InputError (another model, dtype, micro-batch size or number
/// of ranks; keys of /pipeline that contradict the plan), RefusedError (nothing fits the cluster).
[[nodiscard]] ResolvedPlan resolve_plan(const RunConfig& config, const std::string& file,
                                        const TrainingInputs& materials, const std::string& plan_path,
                                        const std::optional<World>& world);

/// Operator threads of a rank, the same in the profile that a plan is made from and in the run: the config's,
/// or the cores over the ranks. Without a launcher those are the config's stages, or one per core where it
/// leaves them open, as plan_cluster offers them.
[[nodiscard]] int rank_threads(const RunConfig& config, const std::optional<World>& world);

/// Measures the model's layers on this process, as config.profiler says, at its micro-batch sizes and the
/// run's, with `threads` operator threads. `file` names the config. Throws RefusedError before anything large
/// is allocated where the memory cannot hold what it measures.
[[nodiscard]] Profile quick_profile(const RunConfig& config, const std::string& file,
                                    const TrainingInputs& materials, int threads, at::Device device);

/// The rates that an estimated profile is made at.
struct EstimateRates {
  double flops_per_second = 0;
  double bytes_per_second = 0;
};

/// The same without running the model, for one of any size (profiler/profile_estimate.h). Throws InputError
/// where it has layers that say nothing of what they take.
[[nodiscard]] Profile estimated_profile(const RunConfig& config, const std::string& file,
                                        const TrainingInputs& materials, const EstimateRates& rates);

/// The mean of all ranks' times, row by row: cores of one machine differ, and a stage may land on any of
/// them. Collective; every rank measured the same model at the same sizes.
[[nodiscard]] Profile mean_over_ranks(Profile profile, Transport& transport);

/// What the planner is asked for: the config's schedule, stages and cuts, one stage a launched rank where it
/// has neither.
[[nodiscard]] PlanRequest plan_request(const RunConfig& config, const std::optional<World>& world);

/// Where ranks compute on GPUs whose links plan_cluster() has nothing to know by: what people should be told, and
/// what to do. Otherwise "".
[[nodiscard]] std::string unmeasured_links(const RunConfig& config, const Profile& profile);

/// The config's cluster, or this machine with `world` (absent: as many as it has cores) ranks; on GPUs with what a card
/// has free for each (device_reserve.h).
[[nodiscard]] Cluster plan_cluster(const RunConfig& config, const Model& model, const Profile& profile,
                                   const std::optional<World>& world);

/// Throws InputError where `plan` is not one for this run.
void check_plan(const Plan& plan, const std::string& plan_file, const RunConfig& config,
                const std::string& file, const Model& model, const std::optional<World>& world);

/// Whether each step agrees on the gradient's norm is the config's to say: puts it into `plan`. A prediction
/// that this makes untrue is made again.
void follow_gradient_norm(const RunConfig& config, Plan& plan);

/// Layers [first, last) of each stage. A plan made from a profile counts the loss as a last layer; the model
/// does not.
[[nodiscard]] std::vector<std::pair<int, int>> stage_layers(const Plan& plan, const Model& model);

}  // namespace stagecraft
