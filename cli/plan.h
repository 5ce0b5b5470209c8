#pragma once

// What `plan` does once it has its inputs, for those who find them elsewhere (a run config names a profile
// and a cluster too).

#include "stagecraft/base/json.h"
#include "stagecraft/base/machine_memory.h"
#include "stagecraft/partitioner/planner.h"

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace stagecraft::cli {

struct PlanOutput {
  std::string path;                ///< where plan.json goes; empty: nowhere
  bool as_json = false;            ///< one JSON document to stdout instead of tables
  std::optional<Jitter> jitter{};  ///< also price the best plans with times that vary
  ChooseBy choose_by = ChooseBy::step;
  bool explain = false;  ///< why the plan is as it is, and what else would bring
  /// Which what-if of the explanation is being planned; may be empty.
  std::function<void(const std::string& what, int tried, int all)> progress{};
};

/// What a plan is made from.
struct PlanInputs {
  Profile profile;
  Cluster cluster;
  PlanRequest request;
  /// What the ranks share, where the profile was measured here and no cluster is named.
  std::vector<MemoryLimit> machine{};
};

/// A run configuration's: the profile in `profile_path`, checked against the config's model, or measured now
/// when it is empty; the cluster in `cluster_path`, or the config's own. With the engine only; without it
/// throws InputError.
[[nodiscard]] PlanInputs config_plan_inputs(const std::string& config, const std::string& profile_path,
                                            const std::string& cluster_path);

/// Plans, writes the plan and prints it with the runners-up. Throws what make_plan throws, and RefusedError
/// where the plan's ranks do not fit the limits of `machine` together.
Plan plan_from(const Profile& profile, const Cluster& cluster, const PlanRequest& request,
               const PlanOutput& output, const std::vector<MemoryLimit>& machine = {});

/// "4 ranks need 9 GiB together, but ...": where all ranks of a plan do not fit one machine's limits.
[[nodiscard]] std::optional<std::string> beyond_machine(const Plan& plan,
                                                        const std::vector<MemoryLimit>& machine);
/// The advice for that.
inline constexpr const char* kWhatMayFit =
    "What may fit: --recompute auto, a smaller --micro-batch-size, or other machines (--cluster FILE)";

/// What is done to a plan before it is printed, if it is asked for: jitter, and writing it.
void finish_plan(PlanResult& result, const PlanOutput& output);
/// The last lines of what is printed.
[[nodiscard]] std::string where_written(const PlanOutput& output);

/// The tables: stages with their costs, the prediction, and the best of every other stage count.
[[nodiscard]] std::string plan_text(const PlanResult& result, const Profile& profile, const Cluster& cluster);
[[nodiscard]] Json plan_json(const PlanResult& result);

}  // namespace stagecraft::cli
