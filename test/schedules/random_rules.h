#pragma once

// Rules of transports, for tests that go over all kinds.

#include "schedules/rules/transport_rules.h"

#include <string>
#include <vector>

namespace stagecraft::test {

inline const std::vector<std::string>& all_rules() {
  static const std::vector<std::string> all{
      "rendezvous",    "rendezvous,fifo", "rendezvous,fifo,payload", "rendezvous,fifo,pair",     "eager",
      "eager:100",     "eager:1000:150",  "eager:1000:250,payload",  "eager:1000:400,fifo,pair", "nccl",
      "nccl,boundary", "nccl,pair"};
  return all;
}

/// Boundaries of 60, 110, 160, ... bytes, so that some are eager under the rules above and some are not.
inline CostTable sizes_for(int stages) {
  CostTable costs;
  costs.stages.resize(static_cast<std::size_t>(stages));
  for (std::size_t s = 1; s < costs.stages.size(); ++s) {
    costs.stages[s].input = costs.stages[s - 1].output = Bytes{10 + 50 * static_cast<std::int64_t>(s)};
  }
  return costs;
}

}  // namespace stagecraft::test
