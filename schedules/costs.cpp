#include "schedules/costs.h"

#include "schedules/base/error.h"

#include <fmt/format.h>

#include <algorithm>

namespace stagecraft {

Link Network::between(Rank a, Rank b) const {
  STAGECRAFT_CHECK(a.valid() && b.valid(), "a link needs two ranks");
  // Going outwards, a level's children hold ever more ranks; the first level whose node holds both is theirs.
  std::int64_t held = 1;
  for (const NetworkLevel& level : levels) {
    held *= std::max(1, level.count);
    if (a.value / held == b.value / held) return level.link;
    if (held > std::max(a.value, b.value)) break;
  }
  throw InputError(
      fmt::format("the network has places for ranks 0 to {}, but rank {} is needed: give its outermost level "
                  "a higher count",
                  held - 1, std::max(a.value, b.value)));
}

CostTable unit_costs(int stages, int ranks) {
  constexpr Seconds kUnit{1e-3};
  StageCosts stage;
  stage.forward = stage.backward_input = stage.backward_weight = kUnit;
  CostTable costs;
  costs.stages.assign(static_cast<std::size_t>(stages), stage);
  costs.network.levels = {NetworkLevel{ranks, Link{}}};
  costs.loss = Bytes{};
  return costs;
}

}  // namespace stagecraft
