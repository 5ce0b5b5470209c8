#include "models/captured/captured_facts.h"

#include "models/captured/captured_layer.h"
#include "models/captured/replay/graph_estimate.h"
#include "models/captured/replay/graph_state.h"
#include "models/captured/replay/index_checks.h"
#include "models/captured/replay/step_work.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>
#include <utility>

namespace stagecraft::captured {
namespace {

/// Of weights that a folder has not got, so that a profile works on numbers of a usual size.
constexpr double kProfiledDeviation = 0.02;

std::string details_of(const ModelFolder& folder, const FolderLayer& layer, bool fused) {
  std::string details = "graph " + layer.replay->graph().hash;
  for (const std::string& name : layer.constants) details += ", " + name;
  if (fused) details += ", fused";
  if (folder.compiled != nullptr && folder.compiled->why_not.empty()) details += ", compiled";
  return details;
}

Origins passed_by(const FolderLayer& layer) {
  Origins passed;
  for (const ValueBehind& value : layer.behind) {
    passed.push_back(value.made ? std::nullopt : std::optional(value.index));
  }
  return passed;
}

Origins carried_by(const FolderLayer& layer) {
  Origins carried;
  for (const ValueBehind& value : layer.behind) {
    carried.emplace_back(value.index);
    if (!value.made) continue;
    const auto from = static_cast<std::size_t>(layer.replay->graph().forward_outputs[value.index]);
    carried.back() = from < layer.reads.size() ? std::optional(layer.reads[from]) : std::nullopt;
  }
  return carried;
}

std::vector<NumberCheck> number_checks_of(const std::shared_ptr<const ModelFolder>& folder,
                                          const FolderLayer& layer) {
  Tensors constants;
  for (const std::string& name : layer.constants) constants.push_back(folder->weights.at(name));
  std::vector<NumberCheck> checks =
      index_checks(folder, layer.replay->graph(), {layer.parameters, layer.fields, constants});
  for (NumberCheck& check : checks) {
    if (check.field.empty()) check.place = layer.reads[check.place];
  }
  return checks;
}

std::vector<ParameterSpec> parameters_of(const ModelFolder& folder, const FolderLayer& layer) {
  const Graph& graph = layer.replay->graph();
  const std::vector<bool> tables = tables_among_parameters(graph);
  std::vector<ParameterSpec> specs;
  for (std::size_t i = 0; i < graph.parameters.size(); ++i) {
    specs.push_back({layer.parameters[i], graph.parameters[i].at(1), {}});
    if (lacks_weights(folder)) specs.back().initial = {Initial::Kind::normal, kProfiledDeviation};
    // What was captured as float32 stays so where the model computes in a narrower type.
    specs.back().full = graph.parameters[i].dtype == at::kFloat;
    specs.back().tied = layer.parameters[i];
    specs.back().table = tables[i];
    const auto order = folder.memory_orders.find(layer.parameters[i]);
    if (order != folder.memory_orders.end()) specs.back().memory_order = order->second;
    const auto place = folder.places.find(layer.parameters[i]);
    if (place != folder.places.end()) specs.back().place = place->second;
  }
  return specs;
}

std::vector<BufferSpec> buffers_of(const FolderLayer& layer) {
  const Graph& graph = layer.replay->graph();
  std::vector<BufferSpec> specs;
  for (std::size_t i = 0; i < graph.buffers.size(); ++i) {
    const ValueType& type = graph.buffers[i];
    const OverReplicas rule = graph.new_buffers[i] == kNoValue  ? OverReplicas::alone
                              : c10::isFloatingType(type.dtype) ? OverReplicas::mean
                                                                : OverReplicas::first;
    specs.push_back({layer.buffers[i], type.at(1), 0, type.dtype, rule, rule == OverReplicas::alone});
  }
  return specs;
}

std::string missing_weights_of(const ModelFolder& folder, const FolderLayer& layer) {
  if (!lacks_weights(folder) || (layer.parameters.empty() && layer.buffers.empty())) return "";
  return fmt::format(
      "{} was captured without weights: name some with --set model.weights=FOLDER, or capture it without "
      "--no-weights",
      folder.path);
}

/// The graph, and what of the bundles around the layer decides its figures: what goes by is part of a layer's memory.
std::string cost_class_of(const FolderLayer& layer) {
  std::string name = layer.replay->graph().hash;
  if (layer.before.size() == 1 && layer.behind.size() == 1) return name;
  name += fmt::format(" reads {}", fmt::join(layer.reads, ","));
  for (const ValueType& type : layer.before) {
    name += fmt::format(" before {} {}", bytes_of(type, 2).value, has_gradient(type));
  }
  for (const ValueBehind& value : layer.behind)
    name += fmt::format(" {}{}", value.made ? "makes " : "", value.index);
  return name;
}

/// Of the bundles around the layer, what the graph says of its own inputs and outputs.
void of_bundles(const FolderLayer& layer, LayerEstimate& found, std::int64_t b) {
  std::vector<InputUse> inputs(layer.before.size());
  std::vector<int> place_of_output(layer.replay->graph().outputs.size(), -1);
  for (std::size_t i = 0; i < layer.reads.size(); ++i) inputs[layer.reads[i]] = found.inputs[i];
  std::vector<OutputUse> outputs;
  for (std::size_t k = 0; k < layer.behind.size(); ++k) {
    const ValueBehind& value = layer.behind[k];
    const auto index = static_cast<int>(value.index);
    if (value.made) {
      outputs.push_back(found.outputs[value.index]);
      place_of_output[value.index] = static_cast<int>(k);
      if (int& same_as = outputs.back().same_as; same_as >= 0) {
        same_as = static_cast<int>(layer.reads[static_cast<std::size_t>(same_as)]);
      }
    } else {
      outputs.push_back({bytes_of(value.type, b), index, has_gradient(value.type)});
      if (has_gradient(value.type)) inputs[value.index].gradient_of = static_cast<int>(k);
    }
  }
  for (const std::size_t read : layer.reads) {
    int& of = inputs[read].gradient_of;
    if (of >= 0) of = place_of_output[static_cast<std::size_t>(of)];
  }
  found.inputs = std::move(inputs);
  found.outputs = std::move(outputs);
}

}  // namespace

bool has_gradient(const ValueType& type) { return c10::isFloatingType(type.dtype); }

bool lacks_weights(const ModelFolder& folder) { return folder.weights.first() == nullptr; }

LayerFacts facts_of(const std::shared_ptr<const ModelFolder>& folder, const FolderLayer& layer, bool fused) {
  return {
      .type = CapturedLayerSpec::kName,
      .details = details_of(*folder, layer, fused),
      .parameters = parameters_of(*folder, layer),
      .buffers = buffers_of(layer),
      .fields = layer.fields,
      .passes = passed_by(layer),
      .carries = carried_by(layer),
      .number_checks = number_checks_of(folder, layer),
      .missing_weights = missing_weights_of(*folder, layer),
      .repeats = false,  // not tried with recordings
      .least_samples = [least = folder->least_samples](const auto&) { return least; },
      .multiply_adds = [per_sample = layer.replay->graph().multiply_adds](const auto&) { return per_sample; },
      .cost_class = cost_class_of(layer),
      .estimate =
          [folder, &layer](std::int64_t micro_batch, bool first) {
            LayerEstimate found = estimate(layer.replay->graph(), micro_batch, !first);
            if (layer.before.size() > 1 || layer.behind.size() > 1) of_bundles(layer, found, micro_batch);
            return found;
          }};
}

}  // namespace stagecraft::captured
