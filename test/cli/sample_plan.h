#pragma once

// The plan that tests of `check`, `simulate` and `compare` start from: four stages with costs, written by hand.

#include "base/json.h"
#include "test/support/command.h"

#include <string>

namespace stagecraft::test {

inline const std::string kPlan = STAGECRAFT_TEST_DATA "/plans/four_stages.json";

/// The sample plan with one change.
template <class Change>
std::string changed_plan(const ScratchFolder& folder, const Change& change) {
  Json plan = json::parse_file(kPlan);
  change(plan);
  return folder.write("plan.json", plan.dump());
}

/// Forward 1 ms, backward 2 ms, no step, no transfers to speak of.
inline void even_costs(Json& plan) {
  for (Json& stage : plan["costs"]["stages"]) {
    stage["forward_ms"] = stage["backward_input_ms"] = stage["backward_weight_ms"] = 1;
    stage["step_ms"] = 0;
  }
  plan["costs"]["network"]["levels"][0]["link"] = {{"latency_ms", 0}, {"bytes_per_second", 1e30}};
}

}  // namespace stagecraft::test
