#include "stagecraft/models/captured/compiled_layer.h"

#include "stagecraft/models/captured/captured_layer.h"
#include "stagecraft/models/layers/functional.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

namespace stagecraft {
namespace {

/// An own layer, and the graph that computes it where that runs code.
class CompiledLayer final : public Layer {
 public:
  CompiledLayer(LayerPtr own, LayerPtr graph, std::shared_ptr<const captured::Replay> replay)
      : Layer(own->name()), own_(std::move(own)), graph_(std::move(graph)), replay_(std::move(replay)) {}

  std::string type() const override { return own_->type(); }
  std::string details() const override {
    const std::string details = own_->details();
    return details + (details.empty() ? "" : ", ") + graph_->details();
  }
  std::vector<ParameterSpec> parameters() const override { return own_->parameters(); }
  std::int64_t least_samples(const std::vector<std::int64_t>& shape) const override {
    return std::max(own_->least_samples(shape), graph_->least_samples(shape));
  }
  /// Devices that record have no compiled code.
  bool repeats() const override { return own_->repeats(); }
  std::vector<NumberCheck> number_checks() const override { return own_->number_checks(); }
  std::int64_t multiply_adds(const std::vector<std::int64_t>& shape) const override {
    return own_->multiply_adds(shape);
  }
  std::string cost_class() const override { return graph_->cost_class(); }

  at::Tensor forward(const Weights& weights, const at::Tensor& input, const Context& context,
                     Kept* kept) const override {
    if (input.is_meta()) return graph_->forward(weights, input, context, kept);  // refuses other types
    const bool by_graph = replay_->runs_code(input.size(0), input.device());
    if (kept != nullptr) kept->form = by_graph ? 1 : 0;
    return (by_graph ? graph_ : own_)->forward(weights, input, context, kept);
  }
  at::Tensor backward_input(const Tensors& parameters, const at::Tensor& grad_output, Kept& kept,
                            bool needs_input_gradient) const override {
    return kept_by(kept).backward_input(parameters, grad_output, kept, needs_input_gradient);
  }
  void backward_weight(Kept& kept, GradientSink& sink) const override {
    kept_by(kept).backward_weight(kept, sink);
  }

 private:
  const Layer& kept_by(const Kept& kept) const { return kept.form == 1 ? *graph_ : *own_; }

  LayerPtr own_, graph_;
  std::shared_ptr<const captured::Replay> replay_;
};

std::string parameter_list(const std::vector<ParameterSpec>& specs, const std::string& prefix) {
  std::string text;
  for (const ParameterSpec& spec : specs) {
    text += fmt::format("{}{}{} {}", text.empty() ? "" : ", ", prefix, spec.name,
                        functional::shape_text(spec.shape));
  }
  return text;
}

/// What runs compiled, and what does not: one line.
std::string note_on_layers(const captured::ModelFolder& folder) {
  const captured::CompiledFolder& code = *folder.compiled;
  const auto with_code = std::ranges::count_if(
      folder.layers, [](const captured::FolderLayer& layer) { return layer.replay->has_code(); });
  const std::string compiled = with_code > 0          ? fmt::format("{} of {} layers, in {}", with_code,
                                                                    folder.layers.size(), code.made_for.text())
                               : code.why_not.empty() ? "nothing: no layer gains by code"
                                                      : "nothing: " + code.why_not;
  return fmt::format("Compiled: {}; the library's own layers compute {}", compiled,
                     with_code > 0 ? "the rest" : "all");
}

}  // namespace

CompiledLayers::Use CompiledLayers::require_folder(const InputPlace& place) const {
  if (!std::filesystem::exists(folder)) {
    throw InputError(place, fmt::format("there is no folder {}; make it: {}", folder, command));
  }
  const auto found = reader.read(folder, "", UseCompiled::allow);
  if (found->name == model) return {note_on_layers(*found), captured::runs_for(*found->compiled)};
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
  const auto found = reader.read(folder, "", UseCompiled::allow);
  const auto layer = std::ranges::find(found->layers, own->name(), &captured::FolderLayer::name);
  if (!layer->replay->has_code()) return own;
  return std::make_shared<const CompiledLayer>(std::move(own), std::move(graph), layer->replay);
}

}  // namespace stagecraft
