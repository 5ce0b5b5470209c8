#include "models/captured/replay/graph_estimate.h"

#include "models/captured/replay/replay.h"
#include "models/captured/replay/step_work.h"

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

namespace {

/// What a graph does with its inputs and outputs, as storages.
class Uses {
 public:
  Uses(const Graph& graph, const StorageMap& storages) : graph_(graph), storages_(storages) {
    for (std::size_t i = 0; i < graph.inputs.size(); ++i) inputs_.push_back(Graph::input(i));
    for (std::size_t i = 0; i < graph.outputs.size(); ++i) {
      outputs_.push_back(storages.of(graph.forward_outputs[i]));
      gradients_.push_back(graph.gradient(i));
      found_outputs_.push_back(
          {storages.bytes(outputs_[i]), input_of(outputs_[i]), c10::isFloatingType(graph.outputs[i].dtype)});
    }
    found_inputs_.resize(inputs_.size());
  }

  /// Of outputs that have memory of their own.
  [[nodiscard]] Bytes made() const {
    Bytes sum;
    for (const StorageId id : distinct(outputs_)) {
      if (input_of(id) < 0) sum += storages_.bytes(id);
    }
    return sum;
  }

  /// Takes inputs and outputs out of what a forward keeps.
  void take_kept(Storages& kept) { take(kept, &InputUse::kept, &OutputUse::kept); }
  /// The same, and their gradients, out of what a weight half reads.
  void take_kept_for_weight(Storages& kept) {
    take(kept, &InputUse::kept_for_weight, &OutputUse::kept_for_weight);
    for (std::size_t i = 0; i < gradients_.size(); ++i) {
      found_outputs_[i].gradient_kept = kept.erase(gradients_[i]) > 0;
    }
  }

  /// Bytes of the gradients that the input half makes.
  Bytes note_gradients(std::int64_t b) {
    Bytes sum;
    const bool is_chain = inputs_.size() == 1 && outputs_.size() == 1;
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      const ValueId gradient = graph_.input_gradients[i];
      if (!c10::isFloatingType(graph_.inputs[i].dtype)) continue;
      if (is_chain && found_outputs_[0].same_as == 0) {  // a view's gradient is a view
        found_inputs_[0].gradient_of = 0;
        continue;
      }
      if (!is_chain && gradient != kNoValue) {
        const auto through = std::find(gradients_.begin(), gradients_.end(), storages_.of(gradient));
        if (through != gradients_.end()) {
          found_inputs_[i].gradient_of = static_cast<int>(through - gradients_.begin());
          continue;
        }
      }
      found_inputs_[i].makes_gradient = true;
      sum += bytes_of(graph_.inputs[i], b);
    }
    return sum;
  }

  /// What others hold meanwhile.
  [[nodiscard]] Storages held() const {
    Storages held(inputs_.begin(), inputs_.end());
    held.insert(outputs_.begin(), outputs_.end());
    held.insert(gradients_.begin(), gradients_.end());
    return held;
  }
  [[nodiscard]] Storages held_before() const { return {inputs_.begin(), inputs_.end()}; }

  [[nodiscard]] const std::vector<InputUse>& inputs() const { return found_inputs_; }
  [[nodiscard]] const std::vector<OutputUse>& outputs() const { return found_outputs_; }

 private:
  static Storages distinct(const Ids& ids) { return {ids.begin(), ids.end()}; }
  [[nodiscard]] int input_of(StorageId id) const {
    const auto found = std::find(inputs_.begin(), inputs_.end(), id);
    return found == inputs_.end() ? -1 : static_cast<int>(found - inputs_.begin());
  }
  void take(Storages& kept, bool InputUse::*of_input, bool OutputUse::*of_output) {
    for (std::size_t i = 0; i < inputs_.size(); ++i) found_inputs_[i].*of_input = kept.contains(inputs_[i]);
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      found_outputs_[i].*of_output = kept.contains(outputs_[i]);
    }
    for (const Ids* ids : {&inputs_, &outputs_}) {
      for (const StorageId id : *ids) kept.erase(id);
    }
  }

  const Graph& graph_;
  const StorageMap& storages_;
  Ids inputs_, outputs_, gradients_;  ///< storages
  std::vector<InputUse> found_inputs_;
  std::vector<OutputUse> found_outputs_;
};

}  // namespace

LayerEstimate estimate(const Graph& graph, std::int64_t b, bool needs_input_gradient) {
  const StorageMap storages(graph, b);
  Uses uses(graph, storages);
  LayerEstimate found;

  const Ids forward_made =
      united({&graph.forward_outputs, &graph.new_buffers, &graph.keep_input, &graph.keep_weight});
  const std::vector<const Step*> forward = wanted_steps(graph.forward, forward_made);
  Storages kept = storages.of_all(united({&graph.keep_input, &graph.keep_weight}));
  uses.take_kept(kept);
  found.kept_for_input = storages.bytes(kept);
  const Course forward_course = follow(storages, forward, {}, forward_made, uses.held_before());
  found.forward_transient = std::max(Bytes{}, forward_course.peak - (found.kept_for_input + uses.made()));
  found.forward = works_of(forward, graph, b);

  const Ids none(graph.inputs.size(), kNoValue);
  const Ids& gradients = needs_input_gradient ? graph.input_gradients : none;
  const Ids input_half_made = united({&gradients, &graph.hand_on});
  const std::vector<const Step*> input_half = wanted_steps(graph.backward_input, input_half_made);
  const Storages others = uses.held();
  Storages held = storages.of_all(graph.keep_weight);  // until the weight half
  held.insert(others.begin(), others.end());
  const Course input_course = follow(storages, input_half, graph.keep_input, input_half_made, held);
  const Bytes gradient = needs_input_gradient ? uses.note_gradients(b) : Bytes{};
  found.backward_input_transient = input_course.peak - gradient;
  found.backward_transient = found.backward_input_transient;
  found.backward_input = works_of(input_half, graph, b);
  if (!graph.parameters.empty()) {
    const Ids for_weight = united({&graph.keep_weight, &graph.hand_on});
    Storages kept_for_weight = storages.of_all(for_weight);
    uses.take_kept_for_weight(kept_for_weight);
    found.kept_for_weight = storages.bytes(kept_for_weight);
    const std::vector<const Step*> weight_half = wanted_steps(graph.backward_weight, graph.gradients);
    // A gradient is added to its sum as soon as it is made.
    const Course weight_course = follow(storages, weight_half, for_weight, {}, others);
    found.backward_weight_transient = weight_course.peak;
    found.backward_transient = std::max(input_course.peak, input_course.end + weight_course.peak) - gradient;
    found.backward_weight = works_of(weight_half, graph, b);
  }
  found.inputs = uses.inputs();
  found.outputs = uses.outputs();
  const bool is_loss = std::all_of(graph.outputs.begin(), graph.outputs.end(),
                                   [](const ValueType& type) { return type.sizes.empty(); });
  if (is_loss) found.outputs.resize(1);                         // its terms go nowhere
  if (found.inputs.size() == 1 && found.outputs.size() == 1) {  // as chains of layers say it
    const InputUse input = found.inputs[0];
    const OutputUse output = found.outputs[0];
    found.output_is_input = output.same_as == 0;
    found.keeps_input = input.kept;
    found.keeps_output = output.kept;
    found.weight_half_keeps_input = input.kept_for_weight;
    found.weight_half_keeps_output = output.kept_for_weight && !found.output_is_input;
    found.weight_half_keeps_gradient = output.gradient_kept;
  }
  return found;
}

}  // namespace stagecraft::captured
