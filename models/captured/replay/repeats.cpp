#include "models/captured/replay/repeats.h"

#include "models/captured/operators/operators.h"

#include <cstdint>
#include <utility>

namespace stagecraft::captured {
namespace {

/// The losses' `reduction`: 0 leaves them as they are.
bool sums(const Step& step) {
  const std::optional<int> at = step.op ? step.op->schema().argumentIndexWithName("reduction") : std::nullopt;
  if (!at) return true;
  const Argument& reduction = step.arguments.at(static_cast<std::size_t>(*at));
  return !reduction.constant.isInt() || reduction.constant.toInt() != 0;
}

bool refused(const Step& step) {
  const Operator* const op = find_operator(step.name);
  if (op == nullptr) return false;  // our own, or compiled code, which devices do not run
  return op->repeats == Repeats::refused || (op->repeats == Repeats::refused_summed && sums(step));
}

std::string refused_step(const OfGraphs* its) {
  if (its == nullptr) return "";
  for (const Graph* const graph : its->graphs()) {
    const std::pair<const Steps*, const char*> all[] = {{&graph->forward, "forward"},
                                                        {&graph->backward_input, "backward"},
                                                        {&graph->backward_weight, "backward of its weights"},
                                                        {&graph->evaluate, "evaluation"}};
    for (const auto& [steps, where] : all) {
      for (const Step& step : *steps) {
        if (refused(step)) return step.name + " in its " + where;
      }
    }
  }
  return "";
}

}  // namespace

std::string refused_step(const Layer& layer) { return refused_step(dynamic_cast<const OfGraphs*>(&layer)); }
std::string refused_step(const Loss& loss) { return refused_step(dynamic_cast<const OfGraphs*>(&loss)); }

}  // namespace stagecraft::captured
