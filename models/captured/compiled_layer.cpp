#include "stagecraft/models/captured/compiled_layer.h"

#include "stagecraft/models/captured/captured_layer.h"
#include "stagecraft/models/layers/functional.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

namespace stagecraft {
namespace {

/// The graph of an own layer, with that one's identity.
class CompiledLayer final : public Layer {
 public:
  CompiledLayer(LayerPtr own, LayerPtr graph)
      : Layer(own->name()), own_(std::move(own)), graph_(std::move(graph)) {}

  std::string type() const override { return own_->type(); }
  std::string details() const override {
    const std::string details = own_->details();
    return details + (details.empty() ? "" : ", ") + graph_->details();
  }
  std::vector<ParameterSpec> parameters() const override {
    std::vector<ParameterSpec> specs = own_->parameters();
    const std::vector<ParameterSpec> read = graph_->parameters();
    for (std::size_t i = 0; i < specs.size(); ++i) specs[i].full = read[i].full;
    return specs;
  }
  std::int64_t least_samples(const std::vector<std::int64_t>& shape) const override {
    return graph_->least_samples(shape);
  }
  bool repeats() const override { return graph_->repeats(); }
  std::int64_t multiply_adds(const std::vector<std::int64_t>& shape) const override {
    return own_->multiply_adds(shape);
  }
  std::string cost_class() const override { return graph_->cost_class(); }
  std::optional<LayerEstimate> estimate(std::int64_t micro_batch, bool first) const override {
    return graph_->estimate(micro_batch, first);
  }

  at::Tensor forward(const Weights& weights, const at::Tensor& input, const Context& context,
                     Kept* kept) const override {
    return graph_->forward(weights, input, context, kept);
  }
  at::Tensor backward_input(const Tensors& parameters, const at::Tensor& grad_output, Kept& kept,
                            bool needs_input_gradient) const override {
    return graph_->backward_input(parameters, grad_output, kept, needs_input_gradient);
  }
  void backward_weight(Kept& kept, GradientSink& sink) const override { graph_->backward_weight(kept, sink); }

 private:
  LayerPtr own_, graph_;
};

std::string parameter_list(const std::vector<ParameterSpec>& specs, const std::string& prefix) {
  std::string text;
  for (const ParameterSpec& spec : specs) {
    text += fmt::format("{}{}{} {}", text.empty() ? "" : ", ", prefix, spec.name,
                        functional::shape_text(spec.shape));
  }
  return text;
}

}  // namespace

std::string CompiledLayers::require_folder(const InputPlace& place) const {
  if (!std::filesystem::exists(folder)) {
    throw InputError(place, fmt::format("there is no folder {}; make it: {}", folder, command));
  }
  const auto found = reader.read(folder, "", UseCompiled::allow);
  if (found->name == model) return note_on(*found->compiled);
  throw InputError(
      place, fmt::format("{} is of the model \"{}\", and this one is \"{}\"; make a folder of it: {}", folder,
                         found->name, model, command));
}

LayerPtr CompiledLayers::in_place_of(LayerPtr own, const LayerSite& site) const {
  const CapturedLayerSpec spec{folder, own->name(), "", Accumulate::fused, UseCompiled::allow, reader};
  LayerPtr graph = make_layer(spec, site);
  const std::string prefix = own->name() + ".";
  const std::vector<ParameterSpec> specs = own->parameters(), read = graph->parameters();
  const bool same = std::equal(specs.begin(), specs.end(), read.begin(), read.end(),
                               [&](const auto& its, const auto& of_graph) {
                                 return prefix + its.name == of_graph.name && its.shape == of_graph.shape;
                               });
  if (!same || !graph->buffers().empty() || !graph->fields().empty()) {
    throw InputError(
        site.place,
        fmt::format("layer \"{}\" has {}, and in {} it has {}; make the folder again: {}", own->name(),
                    parameter_list(specs, prefix), folder, parameter_list(read, ""), command));
  }
  return std::make_shared<const CompiledLayer>(std::move(own), std::move(graph));
}

}  // namespace stagecraft
