#pragma once

// Where a run's plan comes from: a file, or the planner, from a quick profile of this machine.

#include "engine/run/resolve/plan_request.h"
#include "engine/run/resolve/training_inputs.h"
#include "partitioner/plan/plan.h"

#include <optional>
#include <string>
#include <vector>

namespace stagecraft {

/// The source of plans that no file has.
inline constexpr const char* kMadeNow = "the plan made now";

struct FoundPlan {
  Plan plan;
  std::string source;                ///< its file, or kMadeNow
  std::optional<int> threads{};      ///< operator threads that it was measured with just now
  std::optional<Profile> profile{};  ///< that it was made from now
  std::vector<std::string> notes{};  ///< for people
};

/// `plan_path` (--plan) goes before the config's pipeline.plan. `world`: absent without a launcher, when
/// ranks are as many as the plan wants. `kept`: path of a profile that may be there, and is taken where it is of what
/// would be measured. Reads a file or measures; resolve() looks at what it gives. Throws InputError,
/// and RefusedError where nothing fits the cluster.
[[nodiscard]] FoundPlan find_plan(const RunConfig& config, const std::string& file,
                                  const TrainingInputs& inputs, const std::string& plan_path,
                                  const std::optional<World>& world, const std::string& kept = "");

}  // namespace stagecraft
