#include "partitioner/advice/robust_choice.h"

#include <algorithm>

namespace stagecraft {

void add_jitter(PlanResult& result, const Jitter& jitter, std::size_t most, ChooseBy by) {
  result.best.jittered = jittered_step(result.best.plan, jitter);
  const std::size_t others = std::min(result.others.size(), most - 1);
  for (std::size_t i = 0; i < others; ++i) {
    result.others[i].jittered = jittered_step(result.others[i].plan, jitter);
  }
  if (by == ChooseBy::step || others == 0) return;
  const auto least =
      std::min_element(result.others.begin(), result.others.begin() + static_cast<std::ptrdiff_t>(others),
                       [](const auto& a, const auto& b) { return a.jittered->p95 < b.jittered->p95; });
  if (least->jittered->p95 < result.best.jittered->p95) {
    // The others stay in the order of their steps: what was the best comes before them.
    std::rotate(result.others.begin(), least, least + 1);
    std::swap(result.best, result.others.front());
  }
}

}  // namespace stagecraft
