#include "models/check/model_check.h"

#include "base/error.h"
#include "base/place_error.h"
#include "models/tensors/libtorch_error.h"
#include "models/tensors/shape_text.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <typeinfo>

namespace stagecraft {
namespace {

/// Equal for layers of the same kind, settings and sizes.
std::string key_of(const Layer& layer, const Bundle& inputs) {
  std::string key = fmt::format("{} {} {} {}", typeid(layer).name(), layer.facts().type,
                                layer.facts().details, layer.facts().cost_class);
  for (const ParameterSpec& spec : layer.parameters()) {
    key += fmt::format(" {}{}{}", spec.name, shape_text(spec.shape), spec.full ? " full" : "");
  }
  for (const BufferSpec& spec : layer.buffers()) {
    key += fmt::format(" {}{}", spec.name, shape_text(spec.shape));
  }
  for (const at::Tensor& value : inputs) {
    key += fmt::format(" {} {}", c10::toString(value.scalar_type()), shape_text(value.sizes()));
  }
  return key;
}

/// Captured layers stand for what they were captured from, with weights and inputs of their own; all others have a
/// written-out backward. Their cost class is what tells them: the hash of a graph.
bool is_captured(const Layer& layer) { return !layer.facts().cost_class.empty(); }

/// Where the layer before could not be run.
Bundle stand_in(const BoundarySpec& spec) {
  Bundle bundle;
  for (const ValueSpec& value : spec.values) {
    bundle.push_back(c10::isFloatingType(value.dtype)
                         ? at::randn(value.shape, at::kDouble).to(value.dtype)
                         : at::zeros(value.shape, at::TensorOptions(value.dtype)));
  }
  return bundle;
}

bool is_of(const Bundle& bundle, const BoundarySpec& spec) {
  return std::equal(bundle.begin(), bundle.end(), spec.values.begin(), spec.values.end(),
                    [](const at::Tensor& value, const ValueSpec& its) {
                      return value.defined() && value.scalar_type() == its.dtype &&
                             value.sizes() == at::IntArrayRef(its.shape);
                    });
}

class Chain {
 public:
  Chain(const Model& model, const ModelInput& input, std::uint64_t micro_batch)
      : model_(model),
        fields_(input.fields),
        micro_batch_(micro_batch),
        specs_(boundaries(model, {input.inputs.size(0)})),
        now_{model.boundary_of(input.inputs)} {}

  [[nodiscard]] LayerInput input() const { return {now_, fields_}; }

  void go_on(std::size_t i, const Tensors& copies, Tensors buffers, std::uint64_t seed) {
    try {
      const Context context{Mode::train, {seed, i, 0, micro_batch_}, true, &fields_};
      for (at::Tensor& buffer : buffers) buffer = buffer.clone();
      Bundle copy;
      for (const at::Tensor& value : now_) copy.push_back(value.clone());
      now_ = contiguous(model_.layers[i]->forward_bundle({copies, buffers}, copy, context, nullptr));
      if (!is_of(now_, specs_[i + 1])) now_ = stand_in(specs_[i + 1]);
    } catch (...) {  // the layer's own trial says what
      skip(i);
    }
  }

  void skip(std::size_t i) { now_ = stand_in(specs_[i + 1]); }

 private:
  const Model& model_;
  FieldTensors fields_;
  std::uint64_t micro_batch_;
  std::vector<BoundarySpec> specs_;
  Bundle now_;
};

}  // namespace

std::vector<LayerReport> check_layers(const Model& model, const Loss& loss, std::uint64_t seed,
                                      const ModelInput& first, const ModelInput& second,
                                      const std::function<void(std::size_t)>& progress) {
  const c10::InferenceMode normal(false);
  const c10::NoGradGuard no_grad;
  std::vector<LayerReport> reports;
  std::map<std::string, std::size_t> known;
  Chain one(model, first, 0), two(model, second, 1);
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    if (progress) progress(i);
    const Layer& layer = *model.layers[i];
    LayerTrial trial;
    trial.first = one.input();
    trial.second = two.input();
    trial.precision = model.precision;
    trial.draws = !is_captured(layer);
    const auto [like, fresh] = known.try_emplace(key_of(layer, trial.first.inputs), reports.size());
    if (!fresh) reports[like->second].alike.push_back(layer.name());
    if (fresh) reports.push_back({layer.name(), layer.facts().type, {}, {}});
    LayerChecked& checked = reports[like->second].checked;
    try {
      trial.parameters = initial_parameters(model, static_cast<int>(i), seed);
      trial.buffers = initial_buffers(model, static_cast<int>(i));
    } catch (const InputError&) {  // weights that lie nowhere: nothing that the layer promised
      throw;
    } catch (...) {
      checked[Aspect::output] = {Checked::Result::failed,
                                 thrown_text(without_stack(std::current_exception(), ""))};
      one.skip(i);
      two.skip(i);
      continue;
    }
    if (fresh) checked = check_layer(layer, trial);
    const Tensors copies = compute_copy(model, static_cast<int>(i), trial.parameters);
    one.go_on(i, copies, trial.buffers, seed);
    two.go_on(i, copies, trial.buffers, seed);
  }
  const LossTrial trial{one.input().inputs.front(), first.targets, first.fields,
                        /*draws=*/loss.reads_targets()};
  reports.push_back({"loss", "", {}, check_loss(loss, trial)});
  return reports;
}

}  // namespace stagecraft
