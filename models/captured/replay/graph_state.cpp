#include "models/captured/replay/graph_state.h"

#include <algorithm>

namespace stagecraft::captured {

namespace {

// Of aten::_native_batch_norm_legit_functional.
constexpr std::size_t kRunningMean = 3, kRunningVariance = 4, kTraining = 5;
constexpr std::size_t kNormalized = 3;  // results before the new statistics

bool norms_by_the_batch(const Step& step) {
  return step.name == "aten::_native_batch_norm_legit_functional" && step.arguments.size() > kTraining &&
         step.arguments[kTraining].constant.isBool() && step.arguments[kTraining].constant.toBool();
}

}  // namespace

bool reads_what_it_changes(const Graph& graph) {
  std::vector<bool> follows(graph.values.size());  // from a buffer that changes
  const auto does = [&](ValueId id) { return id != kNoValue && follows[static_cast<std::size_t>(id)]; };
  for (std::size_t i = 0; i < graph.new_buffers.size(); ++i) {
    if (graph.new_buffers[i] != kNoValue) follows[static_cast<std::size_t>(graph.buffer(i))] = true;
  }
  for (const Step& step : graph.forward) {
    const bool norms = norms_by_the_batch(step);
    bool reads = false, statistics = false;
    for (std::size_t i = 0; i < step.arguments.size(); ++i) {
      const std::vector<ValueId>& values = step.arguments[i].values;
      const bool found = std::any_of(values.begin(), values.end(), does);
      (norms && (i == kRunningMean || i == kRunningVariance) ? statistics : reads) |= found;
    }
    for (std::size_t i = 0; i < step.results.size(); ++i) {
      if (step.results[i] == kNoValue) continue;
      follows[static_cast<std::size_t>(step.results[i])] = reads || (statistics && i >= kNormalized);
    }
  }
  const auto any = [&](const std::vector<ValueId>& ids) { return std::any_of(ids.begin(), ids.end(), does); };
  return any(graph.forward_outputs) || any(graph.keep_input) || any(graph.keep_weight);
}

}  // namespace stagecraft::captured
