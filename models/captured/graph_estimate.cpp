#include "stagecraft/models/captured/graph_estimate.h"

#include "stagecraft/models/captured/replay.h"
#include "stagecraft/models/captured/step_work.h"

#include <algorithm>
#include <map>
#include <set>

namespace stagecraft::captured {
namespace {

using Ids = std::vector<ValueId>;
/// A storage, named by the value that made it.
using StorageId = ValueId;
using Storages = std::set<StorageId>;

/// Which storage each value lies in.
class StorageMap {
 public:
  StorageMap(const Graph& graph, std::int64_t b) : graph_(graph), b_(b) {
    for (std::size_t id = 0; id < graph.values.size(); ++id) of_.push_back(static_cast<StorageId>(id));
    for (const Steps* steps : {&graph.forward, &graph.backward_input, &graph.backward_weight}) {
      for (const Step& step : *steps) {
        if (!is_view(step)) continue;
        for (const ValueId result : step.results) {
          if (result != kNoValue) of_[static_cast<std::size_t>(result)] = of(step.arguments[0].values[0]);
        }
      }
    }
  }
  [[nodiscard]] StorageId of(ValueId id) const { return of_[static_cast<std::size_t>(id)]; }
  [[nodiscard]] Bytes bytes(StorageId id) const {
    return bytes_of(graph_.values[static_cast<std::size_t>(id)].type, b_);
  }
  [[nodiscard]] Bytes bytes(const Storages& storages) const {
    Bytes sum;
    for (const StorageId id : storages) sum += bytes(id);
    return sum;
  }
  /// Without those of parameters, buffers, constants and fields, which are there anyway.
  [[nodiscard]] Storages of_all(const Ids& ids) const {
    Storages storages;
    for (const ValueId id : ids) {
      if (id != kNoValue && !is_fixed(of(id))) storages.insert(of(id));
    }
    return storages;
  }
  [[nodiscard]] bool is_fixed(StorageId id) const {
    return id >= graph_.parameter(0) && id < graph_.result(0);
  }

 private:
  const Graph& graph_;
  std::int64_t b_;
  std::vector<StorageId> of_;
};

/// Live bytes of one part, relative to its beginning.
struct Course {
  Bytes peak;
  Bytes end;  ///< outputs included
};

/// Runs a part in thought. `given`: values that die in it. `held`: storages that others hold meanwhile.
Course follow(const StorageMap& storages, const std::vector<const Step*>& steps, const Ids& given,
              const Ids& outputs, const Storages& held) {
  std::map<ValueId, std::size_t> last_read;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    for (const Argument& argument : steps[i]->arguments) {
      for (const ValueId id : argument.values) last_read[id] = i;
    }
  }
  for (const ValueId id : outputs) last_read[id] = steps.size();

  Course course;
  std::map<StorageId, int> values_in;  // alive
  const auto born = [&](ValueId id) { return ++values_in[storages.of(id)] == 1; };
  const auto dies = [&](ValueId id) {
    const StorageId storage = storages.of(id);
    if (--values_in[storage] > 0 || held.contains(storage) || storages.is_fixed(storage)) return;
    course.end = course.end - storages.bytes(storage);
  };
  std::vector<Ids> deaths(steps.size() + 1);
  for (const ValueId id : given) (void)born(id);
  for (const ValueId id : given) {
    const auto read = last_read.find(id);
    if (read == last_read.end()) {
      dies(id);
    } else {
      deaths[read->second].push_back(id);
    }
  }
  for (std::size_t i = 0; i < steps.size(); ++i) {
    for (const ValueId id : steps[i]->results) {
      if (id == kNoValue) continue;
      if (born(id) && storages.of(id) == id) course.end += storages.bytes(id);
      const auto read = last_read.find(id);
      deaths[read == last_read.end() ? i : read->second].push_back(id);
    }
    course.peak = std::max(course.peak, course.end);
    for (const ValueId id : deaths[i]) dies(id);
  }
  return course;
}

Ids united(std::initializer_list<const Ids*> lists) {
  Ids all;
  for (const Ids* list : lists) {
    for (const ValueId id : *list) {
      if (id != kNoValue && std::find(all.begin(), all.end(), id) == all.end()) all.push_back(id);
    }
  }
  return all;
}

std::vector<OperatorWork> works_of(const std::vector<const Step*>& steps, const Graph& graph,
                                   std::int64_t b) {
  std::vector<OperatorWork> works;
  for (const Step* step : steps) {
    if (!is_view(*step)) works.push_back(work_of(*step, graph.values, b));
  }
  return works;
}

}  // namespace

LayerEstimate estimate(const Graph& graph, std::int64_t b, bool needs_input_gradient) {
  const StorageMap storages(graph, b);
  const StorageId input = storages.of(kInput), output = storages.of(graph.forward_output);
  LayerEstimate found;
  found.output_is_input = input == output;

  const Ids output_alone{graph.forward_output};
  const Ids forward_made = united({&output_alone, &graph.new_buffers, &graph.keep_input, &graph.keep_weight});
  const std::vector<const Step*> forward = wanted_steps(graph.forward, forward_made);
  Storages kept = storages.of_all(united({&graph.keep_input, &graph.keep_weight}));
  const Bytes stays_of_output = found.output_is_input ? Bytes{} : storages.bytes(output);
  found.keeps_input = kept.erase(input) > 0;
  found.keeps_output = kept.erase(output) > 0 || (found.output_is_input && found.keeps_input);
  found.kept_for_input = storages.bytes(kept);
  const Course forward_course = follow(storages, forward, {}, forward_made, {input});
  found.forward_transient = std::max(Bytes{}, forward_course.peak - (found.kept_for_input + stays_of_output));
  found.forward = works_of(forward, graph, b);

  const Ids gradient_alone{needs_input_gradient ? graph.input_gradient : kNoValue};
  const Ids input_half_made = united({&gradient_alone, &graph.hand_on});
  const std::vector<const Step*> input_half = wanted_steps(graph.backward_input, input_half_made);
  const Storages others{kGradient, input, output};
  Storages held = storages.of_all(graph.keep_weight);  // until the weight half
  held.insert(others.begin(), others.end());
  const Course input_course = follow(storages, input_half, graph.keep_input, input_half_made, held);
  const bool makes_gradient = needs_input_gradient && !found.output_is_input;
  const Bytes gradient = makes_gradient ? bytes_of(graph.input, b) : Bytes{};
  found.backward_input_transient = input_course.peak - gradient;
  found.backward_transient = found.backward_input_transient;
  found.backward_input = works_of(input_half, graph, b);
  if (graph.parameters.empty()) return found;

  const Ids for_weight = united({&graph.keep_weight, &graph.hand_on});
  Storages kept_for_weight = storages.of_all(for_weight);
  found.weight_half_keeps_input = kept_for_weight.erase(input) > 0;
  found.weight_half_keeps_output = kept_for_weight.erase(output) > 0;
  found.weight_half_keeps_gradient = kept_for_weight.erase(kGradient) > 0;
  found.kept_for_weight = storages.bytes(kept_for_weight);
  const std::vector<const Step*> weight_half = wanted_steps(graph.backward_weight, graph.gradients);
  const Course weight_course = follow(storages, weight_half, for_weight, graph.gradients, others);
  found.backward_weight_transient = weight_course.peak;
  found.backward_transient = std::max(input_course.peak, input_course.end + weight_course.peak) - gradient;
  found.backward_weight = works_of(weight_half, graph, b);
  return found;
}

}  // namespace stagecraft::captured
