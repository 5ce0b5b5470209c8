#include "models/captured/compiled/run_placer.h"

#include "models/captured/format/graph_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

namespace stagecraft::captured {
namespace {

Steps& steps_of(Graph& graph, Part part) {
  switch (part) {
    case Part::forward:
      return graph.forward;
    case Part::backward_input:
      return graph.backward_input;
    case Part::backward_weight:
      return graph.backward_weight;
    default:
      return graph.evaluate;
  }
}

/// What the engine and later parts read of a part.
std::set<ValueId> read_behind(const Graph& graph, Part part) {
  std::set<ValueId> read;
  const auto add = [&](const std::vector<ValueId>& ids) { read.insert(ids.begin(), ids.end()); };
  switch (part) {
    case Part::forward:
      add(graph.forward_outputs);
      add(graph.new_buffers);
      add(graph.keep_input);
      add(graph.keep_weight);
      break;
    case Part::backward_input:
      add(graph.input_gradients);
      add(graph.hand_on);
      break;
    case Part::backward_weight:
      add(graph.gradients);
      break;
    default:
      add(graph.evaluate_outputs);
  }
  return read;
}

std::set<ValueId> made_by(const Step& step) { return {step.results.begin(), step.results.end()}; }

std::set<ValueId> read_by(const Step& step) {
  std::set<ValueId> read;
  for (const Argument& argument : step.arguments) {
    read.insert(argument.values.begin(), argument.values.end());
  }
  read.erase(kNoValue);
  return read;
}

}  // namespace

void RunPlacer::place(const IndexRun& run, std::shared_ptr<const CompiledCode> code,
                      const std::string& pointer) {
  const std::vector<Value>& values = run.part == Part::evaluate ? graph_.evaluate_values : graph_.values;
  auto compiled = std::make_shared<CompiledRun>();
  compiled->where = fmt::format("graph {}, {} of {}.so", graph_.hash, enum_name(run.part), run.file);
  compiled->code = std::move(code);
  Step step;
  step.name = "compiled " + run.file;
  step.own = Step::Own::compiled;
  if (run.strides.size() != run.inputs.size()) {
    throw InputError(at(pointer + "/strides"), fmt::format("expected those of {} inputs, found {}",
                                                           run.inputs.size(), run.strides.size()));
  }
  for (std::size_t i = 0; i < run.inputs.size(); ++i) {
    const ValueId id = id_of(run.inputs[i], values.size(), fmt::format("{}/inputs/{}", pointer, i));
    const ValueType& type = values[static_cast<std::size_t>(id)].type;
    if (run.strides[i].size() != type.sizes.size() ||
        std::any_of(run.strides[i].begin(), run.strides[i].end(), [](auto s) { return s < 0; })) {
      throw InputError(at(fmt::format("{}/strides/{}", pointer, i)),
                       fmt::format("does not fit \"{}\", which is {}", run.inputs[i], type.text()));
    }
    compiled->inputs.push_back({type.dtype, type.at(b_), run.strides[i]});
    step.arguments.push_back({Argument::Kind::value, {}, {id}, {}});
  }
  for (std::size_t i = 0; i < run.outputs.size(); ++i) {
    step.results.push_back(id_of(run.outputs[i], values.size(), fmt::format("{}/outputs/{}", pointer, i)));
  }
  step.compiled = std::move(compiled);
  replace(run, std::move(step), pointer);
}

void RunPlacer::finish(const std::string& pointer) {
  for (const auto& [part, before] : before_) {
    Steps& steps = steps_of(graph_, part);
    steps.insert(steps.end(), before.steps.begin() + static_cast<std::ptrdiff_t>(before.next),
                 before.steps.end());
    std::set<ValueId> made, all;
    for (const Step& step : before.steps) all.merge(made_by(step));
    const auto readable = [&](ValueId id) {
      return id == kNoValue || !all.contains(id) || made.contains(id);
    };
    for (const Step& step : steps) {
      for (const ValueId id : read_by(step)) {
        if (!readable(id)) refuse(pointer, part, id);
      }
      made.merge(made_by(step));
    }
    for (const ValueId id : read_behind(graph_, part)) {
      if (!readable(id)) refuse(pointer, part, id);
    }
  }
}

void RunPlacer::refuse(const std::string& pointer, Part part, ValueId id) const {
  throw InputError(at(pointer), fmt::format("{} reads %{} where no step and no run has made it",
                                            enum_name(part), id - graph_.result(0)));
}

ValueId RunPlacer::id_of(const std::string& name, std::size_t count, const std::string& pointer) const {
  const std::optional<ValueId> id = value_named(graph_, name, count);
  if (!id) throw InputError(at(pointer), fmt::format("there is no value {}", json::brief(name)));
  return *id;
}

RunPlacer::Before& RunPlacer::before(Part part) {
  const auto [known, fresh] = before_.try_emplace(part);
  if (fresh) {
    known->second.steps = std::exchange(steps_of(graph_, part), {});
    for (const Step& step : known->second.steps) known->second.read.merge(read_by(step));
  }
  return known->second;
}

std::set<std::size_t> RunPlacer::replaced_by(const IndexRun& run, const Before& before,
                                             const std::string& pointer) const {
  std::set<std::size_t> replaced;
  for (std::size_t i = 0; i < run.steps.size(); ++i) {
    const std::int64_t place = run.steps[i];
    const bool ascends = i == 0 ? place >= static_cast<std::int64_t>(before.next) : place > run.steps[i - 1];
    if (!ascends || place >= static_cast<std::int64_t>(before.steps.size())) {
      throw InputError(at(fmt::format("{}/steps/{}", pointer, i)),
                       fmt::format("found {}: expected places of {} steps, ascending, none of an earlier run",
                                   place, before.steps.size()));
    }
    const Step& step = before.steps[static_cast<std::size_t>(place)];
    if (step.own != Step::Own::none) {
      throw InputError(at(pointer + "/steps"), fmt::format("replace {}, which stays a step", step.name));
    }
    replaced.insert(static_cast<std::size_t>(place));
  }
  return replaced;
}

void RunPlacer::check_values(const IndexRun& run, const Step& made, const std::set<ValueId>& of_run,
                             const Before& before, const std::string& pointer) const {
  std::set<ValueId> results;
  for (std::size_t i = 0; i < made.results.size(); ++i) {
    if (of_run.contains(made.results[i]) && results.insert(made.results[i]).second) continue;
    throw InputError(at(fmt::format("{}/outputs/{}", pointer, i)),
                     fmt::format("\"{}\" is made by none of the steps, or named twice", run.outputs[i]));
  }
  for (std::size_t i = 0; i < made.arguments.size(); ++i) {
    const ValueId id = made.arguments[i].values[0];
    if (before.read.contains(id) && !of_run.contains(id)) continue;
    throw InputError(at(fmt::format("{}/inputs/{}", pointer, i)),
                     fmt::format("\"{}\" is read by no step, or made by one of these", run.inputs[i]));
  }
}

/// The code stands where the last of its steps was. Steps between them that read what it makes, views, move
/// behind it.
void RunPlacer::replace(const IndexRun& run, Step made, const std::string& pointer) {
  Before& its = before(run.part);
  const std::set<std::size_t> replaced = replaced_by(run, its, pointer);
  std::set<ValueId> of_run;
  for (const std::size_t i : replaced) of_run.merge(made_by(its.steps[i]));
  check_values(run, made, of_run, its, pointer);
  Steps& steps = steps_of(graph_, run.part);
  Steps behind;
  std::set<ValueId> later = of_run;
  for (; its.next <= *replaced.rbegin(); ++its.next) {
    if (replaced.contains(its.next)) continue;
    const Step& step = its.steps[its.next];
    const std::set<ValueId> read = read_by(step);
    const bool moves = std::any_of(read.begin(), read.end(), [&](ValueId id) { return later.contains(id); });
    if (moves) later.merge(made_by(step));
    (moves ? behind : steps).push_back(step);
  }
  steps.push_back(std::move(made));
  steps.insert(steps.end(), behind.begin(), behind.end());
}

}  // namespace stagecraft::captured
