#pragma once

// The plan that tests of `check` and `simulate` start from: four stages with costs, written by hand.

#include "stagecraft/base/json.h"
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

}  // namespace stagecraft::test
