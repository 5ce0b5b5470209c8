#include "schedules/costs/costs.h"

#include "base/error.h"

#include <fmt/format.h>

#include <algorithm>

namespace stagecraft {

Network::Path Network::path(Rank a, Rank b) const {
  STAGECRAFT_CHECK(a.valid() && b.valid(), "a link needs two ranks");
  // Going outwards, a level's children hold ever more ranks; the first level whose node holds both is theirs.
  std::int64_t child = 1;  // ranks under one child of the level
  for (std::size_t i = 0; i < levels.size(); ++i) {
    const NetworkLevel& level = levels[i];
    const std::int64_t node = child * std::max(1, level.count);
    if (a.value / node == b.value / node) {
      return {level.link, i, a.value / child, b.value / child, level.shared_by == SharedBy::child};
    }
    child = node;
    if (child > std::max(a.value, b.value)) break;
  }
  throw InputError(
      fmt::format("the network has places for ranks 0 to {}, but rank {} is needed: give its outermost level "
                  "a higher count",
                  child - 1, std::max(a.value, b.value)));
}

CostTable unit_costs(int stages, int ranks) {
  constexpr Seconds kUnit{1e-3};
  StageCosts stage;
  stage.forward = stage.backward_input = stage.backward_weight = kUnit;
  CostTable costs;
  costs.stages.assign(to_size(stages), stage);
  costs.network.levels = {NetworkLevel{ranks, Link{}}};
  costs.loss = Bytes{};
  return costs;
}

}  // namespace stagecraft
