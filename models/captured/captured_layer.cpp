#include "models/captured/captured_layer.h"

#include "base/nearest.h"
#include "models/captured/captured_facts.h"
#include "models/captured/layer_of_lengths.h"
#include "models/captured/replay/graph_state.h"
#include "models/captured/replay/repeats.h"
#include "models/tensors/shape_text.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <mutex>
#include <utility>

namespace stagecraft {
namespace {

using captured::FolderLayer;
using captured::Graph;
using captured::has_gradient;
using captured::kNoValue;
using captured::ModelFolder;
using captured::Programs;
using captured::ValueBehind;
using captured::ValueId;
using captured::ValueType;
using Frame = std::vector<c10::IValue>;

/// What of a run's config makes it compute in that type.
const char* how_to_run_in(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBFloat16:
      return R"(set "bf16": {"enabled": true})";
    case at::kHalf:
      return R"(set "fp16": {"enabled": true})";
    case at::kDouble:
      return R"(set "dtype": "float64")";
    default:
      return "leave dtype, bf16 and fp16 out of the config";
  }
}

const char* how_to_capture_in(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBFloat16:
      return "capture it with --dtype bfloat16";
    case at::kHalf:
      return "capture it with --dtype float16";
    case at::kDouble:
      return "capture a module of float64";
    default:
      return "capture it without --dtype";
  }
}

void add(Frame& frame, const Tensors& tensors) { frame.insert(frame.end(), tensors.begin(), tensors.end()); }

/// Leaves `tensors` empty, so that each dies where it is read last.
void move_to(Frame& frame, Tensors& tensors) {
  for (at::Tensor& tensor : tensors) frame.emplace_back(std::move(tensor));
  tensors.clear();
}

class CapturedLayer final : public Layer, public captured::OfGraphs {
 public:
  CapturedLayer(const LayerSite& site, std::shared_ptr<const ModelFolder> folder, const FolderLayer& layer,
                Accumulate accumulate)
      : Layer(site.name, captured::facts_of(folder, layer, accumulate == Accumulate::fused)),
        place_(site.place),
        folder_(std::move(folder)),
        layer_(layer),
        graph_(layer.replay->graph()),
        accumulate_(accumulate),
        products_(site.products) {
    for (const std::string& name : layer.constants) constants_.push_back(folder_->weights.at(name));
  }

  std::vector<const Graph*> graphs() const override { return {&graph_}; }
  at::Tensor initial_parameter(int parameter) const override {
    const std::string& its_name = layer_.parameters.at(static_cast<std::size_t>(parameter));
    at::Tensor value = stored(its_name);
    if (value.defined() && !all_finite(value)) {
      throw InputError(place_,
                       fmt::format("{}: \"{}\" holds numbers that are not finite; nothing can be trained "
                                   "from there",
                                   weights_path(), its_name));
    }
    return value;
  }
  at::Tensor initial_buffer(int buffer) const override {
    return stored(layer_.buffers.at(static_cast<std::size_t>(buffer)));
  }
  /// Whether these are the sizes that it was captured for. Fields are not known in a dry pass.
  bool takes(const Bundle& inputs, const FieldTensors* fields) const {
    for (std::size_t i = 0; i < layer_.reads.size(); ++i) {
      if (!graph_.inputs[i].samples_of(inputs.at(layer_.reads[i]).sizes())) return false;
    }
    for (std::size_t i = 0; fields != nullptr && i < layer_.fields.size(); ++i) {
      const auto field = fields->find(layer_.fields[i]);
      if (field != fields->end() && !graph_.fields[i].samples_of(field->second.sizes())) return false;
    }
    return true;
  }

  at::Tensor forward(const Weights& weights, const at::Tensor& input, const Context& context,
                     Kept* kept) const override {
    return only(forward_bundle(weights, {input}, context, kept));
  }
  at::Tensor backward_input(const Tensors& parameters, const at::Tensor& grad_output, Kept& kept,
                            bool needs_input_gradient) const override {
    Bundle made = backward_bundle(parameters, {grad_output}, kept, needs_input_gradient);
    return made.empty() ? at::Tensor() : only(std::move(made));
  }

  Bundle forward_bundle(const Weights& weights, const Bundle& inputs, const Context& context,
                        Kept* kept) const override {
    const Bundle read = read_of(inputs);
    if (read[0].is_meta()) return dry_outputs(weights, inputs);
    const bool training = context.mode == Mode::train;
    if (training && !context.commit_buffers) check_may_repeat();
    const c10::Device device = read[0].device();
    const std::int64_t b = samples_of(read, graph_.inputs, "an input");
    layer_.replay->check_fit(b, device);
    const Programs& programs = layer_.replay->at(b, device, products_);
    Frame frame;
    frame.reserve(read.size() + weights.parameters.size() + weights.buffers.size() + constants_.size() +
                  layer_.fields.size());
    add(frame, read);
    add(frame, weights.parameters);
    add(frame, weights.buffers);
    add(frame, constants_on(device));
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
    auto next = made.begin() + static_cast<std::ptrdiff_t>(graph_.outputs.size());
    const Bundle outputs(std::make_move_iterator(made.begin()), std::make_move_iterator(next));
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
    Bundle behind;
    for (const ValueBehind& value : layer_.behind) {
      behind.push_back(value.made ? outputs[value.index] : inputs[value.index]);
    }
    return behind;
  }

  Bundle backward_bundle(const Tensors& parameters, const Bundle& gradients, Kept& kept,
                         bool needs_input_gradient) const override {
    const Bundle of_outputs = gradients_of_outputs(gradients);
    const c10::Device device = of_outputs[0].device();
    const std::int64_t b = samples_of(of_outputs, with_gradient(graph_.outputs), "a gradient");
    const Programs& programs = layer_.replay->at(b, device, products_);
    Frame frame;
    add(frame, of_outputs);
    add(frame, parameters);
    add(frame, constants_on(device));
    move_to(frame, kept.for_input);
    const captured::Program& program =
        needs_input_gradient ? programs.backward_input : programs.backward_for_weight;
    Tensors made = program.run(std::move(frame), {});
    const auto handed_on = made.begin() + static_cast<std::ptrdiff_t>(graph_.inputs.size());
    kept.for_weight.insert(kept.for_weight.end(), std::make_move_iterator(handed_on),
                           std::make_move_iterator(made.end()));
    made.erase(handed_on, made.end());
    if (!needs_input_gradient) return {};
    return gradients_before(std::move(made), gradients, b, device);
  }

  void backward_weight(Kept& kept, GradientSink& sink) const override {
    if (graph_.backward_weight.empty() && kept.for_weight.empty()) return;
    const auto [b, device] = told_by(kept.for_weight);
    Frame frame;
    move_to(frame, kept.for_weight);
    add(frame, constants_on(device));
    const Programs& programs = layer_.replay->at(b, device, products_);
    if (accumulate_ == Accumulate::fused) {
      std::vector<at::Tensor> first(graph_.gradients.size());  // of two factors, while the other is not there
      programs.backward_products.hand_over(std::move(frame), [&](std::size_t output, const at::Tensor& made) {
        const std::size_t i = output / 2;
        const bool is_left = output % 2 == 0;
        if (graph_.products[i].left == kNoValue) {
          if (made.defined()) sink.add(static_cast<int>(i), made);
        } else if (!first[i].defined()) {
          first[i] = made;
        } else {
          const at::Tensor other = std::exchange(first[i], {});
          sink.add_product(static_cast<int>(i), is_left ? made : other, is_left ? other : made);
        }
      });
      return;
    }
    programs.backward_weight.hand_over(std::move(frame), [&](std::size_t i, const at::Tensor& gradient) {
      if (gradient.defined()) sink.add(static_cast<int>(i), gradient);
    });
  }

 private:
  /// The buffers are not as this micro-batch's forward found them.
  void check_may_repeat() const {
    if (!captured::reads_what_it_changes(graph_)) return;
    throw InputError({place_.file, "/activation_checkpointing/recompute"},
                     fmt::format("the forward of layer \"{}\" reads buffers that it changes, so it cannot be "
                                 "done again for the backward: expected none",
                                 name()));
  }

  static at::Tensor only(Bundle bundle) {
    STAGECRAFT_CHECK(bundle.size() == 1, "a layer of several tensors is asked for one");
    return std::move(bundle.front());
  }

  static std::vector<ValueType> with_gradient(const std::vector<ValueType>& types) {
    std::vector<ValueType> found;
    std::copy_if(types.begin(), types.end(), std::back_inserter(found), has_gradient);
    return found;
  }

  /// What the graph reads of the bundle before it.
  Bundle read_of(const Bundle& inputs) const {
    Bundle read;
    for (const std::size_t i : layer_.reads) read.push_back(inputs.at(i));
    return read;
  }

  /// Of the graph's outputs, from those of the bundle behind it.
  Bundle gradients_of_outputs(const Bundle& gradients) const {
    Tensors by_output(graph_.outputs.size());
    std::size_t next = 0;
    for (const ValueBehind& value : layer_.behind) {
      if (!has_gradient(value.type)) continue;
      const at::Tensor& gradient = gradients.at(next++);
      if (value.made) by_output[value.index] = gradient;
    }
    Bundle made;
    for (std::size_t i = 0; i < by_output.size(); ++i) {
      if (has_gradient(graph_.outputs[i])) made.push_back(std::move(by_output[i]));
    }
    return made;
  }

  /// Those of the bundle before the layer: what it makes of what it reads, and what passes it by. `b` and
  /// `device` for what it has no gradient of: zeros.
  Bundle gradients_before(Tensors made, const Bundle& behind, std::int64_t b, c10::Device device) const {
    Tensors by_input(layer_.before.size());
    for (std::size_t i = 0; i < layer_.reads.size(); ++i) {
      const ValueType& type = graph_.inputs[i];
      if (!made[i].defined() && has_gradient(type)) {
        made[i] = at::zeros(type.at(b), at::TensorOptions(device).dtype(type.dtype));
      }
      by_input[layer_.reads[i]] = std::move(made[i]);
    }
    std::size_t next = 0;
    for (const ValueBehind& value : layer_.behind) {
      if (!has_gradient(value.type)) continue;
      const at::Tensor& gradient = behind.at(next++);
      if (!value.made) by_input[value.index] = gradient;
    }
    Bundle gradients;
    for (std::size_t i = 0; i < by_input.size(); ++i) {
      if (has_gradient(layer_.before[i])) gradients.push_back(std::move(by_input[i]));
    }
    return gradients;
  }

  std::int64_t samples_of(const Bundle& bundle, const std::vector<ValueType>& types, const char* what) const {
    std::optional<std::int64_t> b;
    for (std::size_t i = 0; i < types.size(); ++i) {
      const std::int64_t its = samples_of(bundle.at(i), types[i], what);
      if (!types[i].depends_on_b()) continue;
      STAGECRAFT_CHECK(b.value_or(its) == its, fmt::format("layer {}: {} of {} samples beside one of {}",
                                                           name(), what, its, b.value_or(its)));
      b = its;
    }
    return b.value_or(1);
  }

  std::int64_t samples_of(const at::Tensor& tensor, const ValueType& type, const char* what) const {
    const std::optional<std::int64_t> b = type.samples_of(tensor.sizes());
    STAGECRAFT_CHECK(
        b && tensor.scalar_type() == type.dtype,
        fmt::format("layer {}: {} is {} {}, its type {}", name(), what,
                    captured::dtype_name(tensor.scalar_type()), shape_text(tensor.sizes()), type.text()));
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
  Bundle dry_outputs(const Weights& weights, const Bundle& inputs) const {
    std::int64_t b = 1;
    for (std::size_t i = 0; i < layer_.reads.size(); ++i) {
      const at::Tensor& input = inputs.at(layer_.reads[i]);
      const ValueType& type = graph_.inputs[i];
      const std::optional<std::int64_t> its = type.samples_of(input.sizes());
      if (!its || input.scalar_type() != type.dtype) {
        refuse(fmt::format("its input is {}{}", captured::dtype_name(input.scalar_type()),
                           shape_text(input.sizes())),
               input.scalar_type(), type);
      }
      if (type.depends_on_b()) b = *its;
    }
    for (std::size_t i = 0; i < weights.parameters.size(); ++i) {
      const at::ScalarType dtype = weights.parameters[i].scalar_type();
      if (dtype == graph_.parameters[i].dtype) continue;
      refuse(fmt::format("{} is {}", layer_.parameters[i], captured::dtype_name(dtype)), dtype,
             graph_.parameters[i]);
    }
    Bundle behind;
    for (const ValueBehind& value : layer_.behind) {
      behind.push_back(value.made
                           ? at::empty(value.type.at(b), at::TensorOptions(at::kMeta).dtype(value.type.dtype))
                           : inputs.at(value.index));
    }
    return behind;
  }

  [[noreturn]] void refuse(const std::string& found, at::ScalarType of_run, const ValueType& type) const {
    throw InputError(
        place_,
        fmt::format("layer \"{}\" was captured in other types: {}, and {} in the folder; "
                    "{}, or {}",
                    name(), found, type.text(), how_to_run_in(type.dtype), how_to_capture_in(of_run)));
  }

  [[nodiscard]] std::string weights_path() const {
    return folder_->weights.first() == nullptr ? folder_->path : folder_->weights.first()->path();
  }

  /// One pass, piece by piece: weights lie mapped and may be larger than memory.
  static bool all_finite(const at::Tensor& value) {
    constexpr std::int64_t kAtOnce = std::int64_t{1} << 20U;
    const at::Tensor flat = value.reshape({-1});
    for (std::int64_t first = 0; first < flat.numel(); first += kAtOnce) {
      const at::Tensor piece = flat.narrow(0, first, std::min(kAtOnce, flat.numel() - first));
      if (!at::isfinite(piece).all().item<bool>()) return false;
    }
    return true;
  }

  /// Undefined where there are no weights.
  at::Tensor stored(const std::string& name) const {
    if (captured::lacks_weights(*folder_) && !folder_->weights.holds(name)) return {};
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
  MatrixProducts products_;
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
  v.optional("compiled", s.compiled, kUseCompiledDoc);
}

LayerPtr make_layer(const CapturedLayerSpec& spec, const LayerSite& site) {
  std::shared_ptr<const ModelFolder> folder =
      spec.reader.read(spec.path, spec.weights, spec.compiled.value_or(UseCompiled::off));
  const auto found = std::find_if(folder->layers.begin(), folder->layers.end(),
                                  [&](const FolderLayer& layer) { return layer.name == spec.layer; });
  if (found == folder->layers.end()) {
    std::vector<std::string> names;
    for (const FolderLayer& layer : folder->layers) names.push_back(layer.name);
    throw InputError(site.place, fmt::format("{} has no layer \"{}\"{}", spec.path, spec.layer,
                                             did_you_mean(spec.layer, names)));
  }
  const ValueType& input = found->before.front();
  const std::optional<std::int64_t> samples = input.samples_of(site.two);
  if (samples != (input.depends_on_b() ? 2 : 1) ||
      (site.input_dtype == at::kLong) != (input.dtype == at::kLong)) {
    site.refuse(fmt::format("it was captured for {}", input.text()));
  }
  const auto form = [&](const std::shared_ptr<const ModelFolder>& of, const FolderLayer& its) {
    auto layer = std::make_shared<const CapturedLayer>(site, of, its, spec.accumulate);
    return captured::LengthForm{layer, [layer](const Bundle& inputs, const FieldTensors* fields) {
                                  return layer->takes(inputs, fields);
                                }};
  };
  std::vector<captured::LengthForm> forms{form(folder, *found)};
  for (const auto& [length, shorter] : folder->shorter) {
    const FolderLayer& its = shorter->layers[static_cast<std::size_t>(found - folder->layers.begin())];
    const bool same = its.replay == found->replay && its.constants == found->constants;
    if (!same) forms.push_back(form(shorter, its));
  }
  if (forms.size() == 1) return forms.front().layer;
  return captured::layer_of_lengths(std::move(forms));
}

}  // namespace stagecraft
