#include "stagecraft/models/captured/captured_layer.h"

#include "stagecraft/models/captured/graph_estimate.h"
#include "stagecraft/models/layers/functional.h"

#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

namespace stagecraft {
namespace {

using captured::FolderLayer;
using captured::Graph;
using captured::kNoValue;
using captured::ModelFolder;
using captured::Programs;
using captured::ValueId;
using captured::ValueType;
using Frame = std::vector<c10::IValue>;

/// Of weights that a folder has not got, so that a profile works on numbers of a usual size.
constexpr double kProfiledDeviation = 0.02;

void add(Frame& frame, const Tensors& tensors) { frame.insert(frame.end(), tensors.begin(), tensors.end()); }

/// Leaves `tensors` empty, so that each dies where it is read last.
void move_to(Frame& frame, Tensors& tensors) {
  for (at::Tensor& tensor : tensors) frame.emplace_back(std::move(tensor));
  tensors.clear();
}

class CapturedLayer final : public Layer {
 public:
  CapturedLayer(const LayerSite& site, std::shared_ptr<const ModelFolder> folder, const FolderLayer& layer,
                Accumulate accumulate)
      : Layer(site.name),
        place_(site.place),
        folder_(std::move(folder)),
        layer_(layer),
        graph_(layer.replay->graph()),
        accumulate_(accumulate) {
    for (const std::string& name : layer.constants) constants_.push_back(folder_->weights.at(name));
  }

  std::string type() const override { return CapturedLayerSpec::kName; }
  std::string details() const override {
    std::string details = "graph " + graph_.hash;
    for (const std::string& name : layer_.constants) details += ", " + name;
    if (accumulate_ == Accumulate::fused) details += ", fused";
    return details;
  }

  std::vector<std::string> fields() const override { return layer_.fields; }

  std::vector<ParameterSpec> parameters() const override {
    std::vector<ParameterSpec> specs;
    for (std::size_t i = 0; i < graph_.parameters.size(); ++i) {
      specs.push_back({layer_.parameters[i], graph_.parameters[i].at(1), {}});
      if (lacks_weights()) specs.back().initial = {Initial::Kind::normal, kProfiledDeviation};
      // What was captured as float32 stays so where the model computes in a narrower type.
      specs.back().full = graph_.parameters[i].dtype == at::kFloat;
    }
    return specs;
  }
  std::vector<BufferSpec> buffers() const override {
    std::vector<BufferSpec> specs;
    for (std::size_t i = 0; i < graph_.buffers.size(); ++i) {
      const ValueType& type = graph_.buffers[i];
      const OverReplicas rule = graph_.new_buffers[i] == kNoValue ? OverReplicas::alone
                                : c10::isFloatingType(type.dtype) ? OverReplicas::mean
                                                                  : OverReplicas::first;
      specs.push_back({layer_.buffers[i], type.at(1), 0, type.dtype, rule});
    }
    return specs;
  }
  at::Tensor initial_parameter(int parameter) const override {
    return stored(layer_.parameters.at(static_cast<std::size_t>(parameter)));
  }
  at::Tensor initial_buffer(int buffer) const override {
    return stored(layer_.buffers.at(static_cast<std::size_t>(buffer)));
  }
  std::string missing_weights() const override {
    if (!lacks_weights() || (layer_.parameters.empty() && layer_.buffers.empty())) return "";
    return fmt::format(
        "{} was captured without weights: name some with --set model.weights=FOLDER, or "
        "capture it without --no-weights",
        folder_->path);
  }

  std::int64_t least_samples(const std::vector<std::int64_t>&) const override {
    return folder_->least_samples;
  }
  /// Not tried with recordings.
  bool repeats() const override { return false; }
  std::int64_t multiply_adds(const std::vector<std::int64_t>&) const override { return graph_.multiply_adds; }

  std::string cost_class() const override { return graph_.hash; }
  std::optional<LayerEstimate> estimate(std::int64_t micro_batch, bool first) const override {
    return captured::estimate(graph_, micro_batch, !first);
  }

  at::Tensor forward(const Weights& weights, const at::Tensor& input, const Context& context,
                     Kept* kept) const override {
    if (input.is_meta()) return dry_output(weights, input);
    const bool training = context.mode == Mode::train;
    const Programs& programs =
        layer_.replay->at(samples_of(input, graph_.input, "the input"), input.device());
    Frame frame;
    frame.reserve(1 + weights.parameters.size() + weights.buffers.size() + constants_.size() +
                  layer_.fields.size());
    frame.emplace_back(input);
    add(frame, weights.parameters);
    add(frame, weights.buffers);
    add(frame, constants_on(input.device()));
    for (const std::string& name : layer_.fields) {
      STAGECRAFT_CHECK(context.fields != nullptr && context.fields->contains(name),
                       fmt::format("layer {}: field {} was not loaded", this->name(), name));
      frame.emplace_back(context.fields->at(name));
    }
    const bool keeps = training && kept != nullptr;
    const captured::Program& program = !training ? programs.evaluate
                                       : keeps   ? programs.forward_keeping
                                                 : programs.forward;
    Tensors made = program.run(std::move(frame), context.key);
    auto next = made.begin();
    at::Tensor output = std::move(*next++);
    if (training) {
      for (at::Tensor& buffer : weights.buffers) {
        const at::Tensor& value = *next++;
        if (value.defined() && context.commit_buffers) buffer.copy_(value.detach());
      }
    }
    if (keeps) {
      const auto end = next + static_cast<std::ptrdiff_t>(graph_.keep_input.size());
      kept->for_input.assign(std::make_move_iterator(next), std::make_move_iterator(end));
      kept->for_weight.assign(std::make_move_iterator(end), std::make_move_iterator(made.end()));
      for (const ValueId id : graph_.buffers_read_back) {
        kept->for_input.push_back(weights.buffers[static_cast<std::size_t>(id - graph_.buffer(0))]);
      }
    }
    return output;
  }

  at::Tensor backward_input(const Tensors& parameters, const at::Tensor& grad_output, Kept& kept,
                            bool needs_input_gradient) const override {
    const Programs& programs =
        layer_.replay->at(samples_of(grad_output, graph_.output, "the gradient"), grad_output.device());
    Frame frame;
    frame.emplace_back(grad_output);
    add(frame, parameters);
    add(frame, constants_on(grad_output.device()));
    move_to(frame, kept.for_input);
    const captured::Program& program =
        needs_input_gradient ? programs.backward_input : programs.backward_for_weight;
    Tensors made = program.run(std::move(frame), {});
    kept.for_weight.insert(kept.for_weight.end(), std::make_move_iterator(made.begin() + 1),
                           std::make_move_iterator(made.end()));
    return std::move(made.front());
  }

  void backward_weight(Kept& kept, GradientSink& sink) const override {
    if (graph_.backward_weight.empty() && kept.for_weight.empty()) return;
    const auto [b, device] = told_by(kept.for_weight);
    Frame frame;
    move_to(frame, kept.for_weight);
    add(frame, constants_on(device));
    const Programs& programs = layer_.replay->at(b, device);
    if (accumulate_ == Accumulate::fused) {
      const Tensors made = programs.backward_products.run(std::move(frame), {});
      for (std::size_t i = 0; 2 * i < made.size(); ++i) {
        const at::Tensor& left = made[2 * i];
        const at::Tensor& right = made[2 * i + 1];
        if (right.defined()) {
          sink.add_product(static_cast<int>(i), left, right);
        } else if (left.defined()) {
          sink.add(static_cast<int>(i), left);
        }
      }
      return;
    }
    const Tensors gradients = programs.backward_weight.run(std::move(frame), {});
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      if (gradients[i].defined()) sink.add(static_cast<int>(i), gradients[i]);
    }
  }

 private:
  std::int64_t samples_of(const at::Tensor& tensor, const ValueType& type, const char* what) const {
    const std::optional<std::int64_t> b = type.samples_of(tensor.sizes());
    STAGECRAFT_CHECK(b && tensor.scalar_type() == type.dtype,
                     fmt::format("layer {}: {} is {} {}, its type {}", name(), what,
                                 captured::dtype_name(tensor.scalar_type()),
                                 functional::shape_text(tensor.sizes()), type.text()));
    return *b;
  }

  /// The micro-batch's size and the device, from what was kept.
  std::pair<std::int64_t, c10::Device> told_by(const Tensors& kept) const {
    std::size_t i = 0;
    for (const auto* ids : {&graph_.keep_weight, &graph_.hand_on}) {
      for (const ValueId id : *ids) {
        const ValueType& type = graph_.values[static_cast<std::size_t>(id)].type;
        const at::Tensor& tensor = kept.at(i++);
        if (type.depends_on_b()) return {samples_of(tensor, type, "what was kept"), tensor.device()};
      }
    }
    return {1, kept.at(0).device()};  // without steps: gradients are handed on as they are
  }

  /// Shapes alone, and whether the run computes in the types that were captured.
  at::Tensor dry_output(const Weights& weights, const at::Tensor& input) const {
    const std::optional<std::int64_t> b = graph_.input.samples_of(input.sizes());
    if (!b || input.scalar_type() != graph_.input.dtype) {
      refuse(fmt::format("its input is {}{}", captured::dtype_name(input.scalar_type()),
                         functional::shape_text(input.sizes())),
             graph_.input);
    }
    for (std::size_t i = 0; i < weights.parameters.size(); ++i) {
      const at::ScalarType dtype = weights.parameters[i].scalar_type();
      if (dtype == graph_.parameters[i].dtype) continue;
      refuse(fmt::format("{} is {}", layer_.parameters[i], captured::dtype_name(dtype)),
             graph_.parameters[i]);
    }
    return at::empty(graph_.output.at(*b), input.options().dtype(graph_.output.dtype));
  }

  [[noreturn]] void refuse(const std::string& found, const ValueType& type) const {
    throw InputError(place_,
                     fmt::format("layer \"{}\" was captured in other types: {}, and {} in the folder; "
                                 "capture it in the type that the run computes in, or set that type",
                                 name(), found, type.text()));
  }

  [[nodiscard]] bool lacks_weights() const { return folder_->weights.first() == nullptr; }

  /// Undefined where there are no weights.
  at::Tensor stored(const std::string& name) const {
    if (lacks_weights() && !folder_->weights.holds(name)) return {};
    return folder_->weights.at(name);
  }

  /// Copied to a device once.
  Tensors constants_on(c10::Device device) const {
    if (constants_.empty() || device.is_cpu()) return constants_;
    const std::scoped_lock lock(mutex_);
    Tensors& copies = copies_[device.index()];
    if (copies.empty()) {
      const c10::InferenceMode normal(false);
      for (const at::Tensor& constant : constants_) copies.push_back(constant.to(device));
    }
    return copies;
  }

  InputPlace place_;  ///< in the config
  std::shared_ptr<const ModelFolder> folder_;
  const FolderLayer& layer_;
  const Graph& graph_;
  Accumulate accumulate_;
  Tensors constants_;
  mutable std::mutex mutex_;
  mutable std::map<c10::DeviceIndex, Tensors> copies_;
};

}  // namespace

void describe(Fields& v, CapturedLayerSpec& s) {
  v.required("path", s.path, "model folder that stagecraft-capture made", json::non_empty());
  v.required("layer", s.layer, "its name in the manifest");
  v.optional("weights", s.weights, "safetensors file or folder to start from (default: the model folder's)");
  v.optional("accumulate", s.accumulate, kAccumulateDoc);
}

LayerPtr make_layer(const CapturedLayerSpec& spec, const LayerSite& site) {
  std::shared_ptr<const ModelFolder> folder = spec.reader.read(spec.path, spec.weights);
  const auto found = std::find_if(folder->layers.begin(), folder->layers.end(),
                                  [&](const FolderLayer& layer) { return layer.name == spec.layer; });
  if (found == folder->layers.end()) {
    std::vector<std::string> names;
    for (const FolderLayer& layer : folder->layers) names.push_back(layer.name);
    throw InputError(site.place, fmt::format("{} has no layer \"{}\"{}", spec.path, spec.layer,
                                             did_you_mean(spec.layer, names)));
  }
  const ValueType& input = found->replay->graph().input;
  if (input.samples_of(site.two) != 2 || (site.input_dtype == at::kLong) != (input.dtype == at::kLong)) {
    site.refuse(fmt::format("it was captured for {}", input.text()));
  }
  return std::make_shared<const CapturedLayer>(site, folder, *found, spec.accumulate);
}

}  // namespace stagecraft
