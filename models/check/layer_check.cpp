#include "models/check/layer_check.h"

#include "models/check/layer_gradients.h"
#include "models/check/repeat_check.h"
#include "models/check/tried_layer.h"
#include "models/check/watch.h"
#include "models/tensors/shape_text.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <optional>

namespace stagecraft {
namespace {

std::string types_text(const Bundle& bundle) {
  std::string text;
  for (const at::Tensor& value : bundle) {
    if (!text.empty()) text += ", ";
    text += value.defined()
                ? fmt::format("{} {}", c10::toString(value.scalar_type()), shape_text(value.sizes()))
                : "undefined";
  }
  return text;
}

bool same_types(const Bundle& a, const Bundle& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const at::Tensor& x, const at::Tensor& y) {
    return x.defined() == y.defined() &&
           (!x.defined() || (x.scalar_type() == y.scalar_type() && x.sizes() == y.sizes()));
  });
}

bool has_nan(const Bundle& bundle) {
  return std::ranges::any_of(bundle, [](const at::Tensor& value) {
    return value.defined() && value.is_floating_point() && value.isnan().any().item<bool>();
  });
}

Tensors on_meta(const Tensors& tensors) {
  Tensors meta;
  for (const at::Tensor& tensor : tensors) meta.push_back(tensor.to(at::kMeta));
  return meta;
}

void require_run_type(const Bundle& made, Precision precision) {
  for (const at::Tensor& value : made) {
    if (!value.defined() || !value.is_floating_point()) continue;
    require(value.scalar_type() == precision.compute || value.scalar_type() == precision.full,
            fmt::format("it gives {}, and the run computes in {}", types_text(made), precision.name()));
  }
}

/// Of both micro-batches in both modes. Says what training gives.
std::string check_output(const TriedLayer& tried, const LayerTrial& trial) {
  const LayerMaterials with = tried.copy();
  const Tensors parameters = on_meta(with.copies);
  std::string said;
  for (const LayerInput* input : {&with.second, &with.first}) {
    for (const Mode mode : {Mode::evaluate, Mode::train}) {
      Tensors buffers = clones(with.buffers), meta_buffers = on_meta(with.buffers);
      const Context context{mode, kTriedKey, true, &input->fields};
      const Bundle made = tried.layer().forward_bundle({clones(with.copies), buffers}, clones(input->inputs),
                                                       context, nullptr);
      const Bundle meta =
          tried.layer().forward_bundle({parameters, meta_buffers}, on_meta(input->inputs), context, nullptr);
      if (trial.draws) require_run_type(made, trial.precision);
      require(same_types(made, meta),
              fmt::format("the forward gives {}, and {} on the meta device, which plans are made by",
                          types_text(made), types_text(meta)));
      require(!meta.empty() && (!meta.front().defined() || meta.front().is_meta()),
              "the forward gives nothing that lies on the meta device for inputs that do");
      require(has_nan(input->inputs) || !has_nan(made),
              fmt::format("the forward gives NaN in {}, for inputs without",
                          mode == Mode::train ? "training" : "evaluation"));
      said = types_text(made);
    }
  }
  return said;
}

void require_in_place(const Tensors& buffers, const Tensors& before, const TriedLayer& tried) {
  require(buffers.size() == before.size(), "forward changes how many buffers there are");
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    require(buffers[i].is_same(before[i]),
            fmt::format("forward replaces buffer \"{}\": it has to be changed in place",
                        tried.buffers()[i].name));
  }
}

void check_in_place(const TriedLayer& tried) {
  const LayerMaterials with = tried.copy();
  const LayerInput& input = with.first;
  Tensors buffers = with.buffers;  // the same tensors
  Watch watch;
  watch.add_all("its input", input.inputs);
  for (std::size_t i = 0; i < tried.parameters().size(); ++i) {
    watch.add(fmt::format("parameter \"{}\"", tried.parameters()[i].name), with.copies[i]);
  }
  for (const auto& [name, field] : input.fields) watch.add(fmt::format("field \"{}\"", name), field);
  Kept kept;
  const Bundle outputs = train_forward(tried.layer(), with, input, buffers, &kept);
  watch.require_untouched("forward");
  require_in_place(buffers, with.buffers, tried);
  watch.add_all("its output", outputs);
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    watch.add(fmt::format("buffer \"{}\"", tried.buffers()[i].name), buffers[i]);
  }
  const Bundle gradients = drawn_gradients(outputs);
  watch.add_all("the gradient of its output", gradients);
  if (!gradients.empty()) {
    watch.add_all("the gradient of its input", tried.backward_input(with, gradients, kept));
    watch.require_untouched("backward_input");
    GradientAccumulator sums = tried.accumulator();
    tried.backward_weight(kept, sums);
    watch.require_untouched("backward_weight");
  }
  (void)tried.evaluate(with, buffers, kTriedKey);
  watch.require_untouched("forward in evaluation");
  (void)train_forward(tried.layer(), with, input, buffers, nullptr, /*commit_buffers=*/false);
  watch.require_untouched("forward with commit_buffers false");
}

/// Training changes buffers, evaluation reads none, and samples depend on each other: a norm that takes the
/// statistics of the batch in evaluation too.
bool takes_statistics(const TriedLayer& tried, const Bundle& outputs) {
  const at::Tensor& input = tried.materials().first.inputs.front();
  if (outputs.size() != 1 || !input.is_floating_point() || input.dim() < 1 || input.size(0) < 2 ||
      outputs.front().dim() < 1 || outputs.front().size(0) != input.size(0))
    return false;
  LayerMaterials with = tried.copy();
  Tensors buffers = with.buffers;
  (void)train_forward(tried.layer(), with, with.first, buffers, nullptr);
  if (same_bits(with.buffers, tried.materials().buffers)) return false;
  with = tried.copy();
  for (at::Tensor& buffer : with.buffers) {
    if (buffer.is_floating_point()) buffer.add_(1);
  }
  buffers = with.buffers;
  if (!same_bits(tried.evaluate(with, buffers, kTriedKey), outputs)) return false;
  with = tried.copy();
  with.first.inputs.front().select(0, 1).mul_(3).add_(1);
  buffers = with.buffers;
  const at::Tensor changed = tried.evaluate(with, buffers, kTriedKey).front().select(0, 0).to(at::kDouble);
  const at::Tensor before = outputs.front().select(0, 0).to(at::kDouble);
  return (changed - before).abs().max().item<double>() > 1e-3 * before.abs().max().item<double>();
}

void check_evaluation(const TriedLayer& tried, bool draws) {
  const LayerMaterials with = tried.copy();
  Watch watch;
  for (std::size_t i = 0; i < tried.buffers().size(); ++i) {
    watch.add(fmt::format("buffer \"{}\"", tried.buffers()[i].name), with.buffers[i]);
  }
  Tensors buffers = with.buffers;
  const Bundle outputs = clones(tried.evaluate(with, buffers, kTriedKey));
  watch.require_untouched("forward in evaluation");
  const LayerMaterials again = tried.copy();
  buffers = again.buffers;
  const RandomKey other{kTriedKey.seed + 1, kTriedKey.layer, kTriedKey.step + 1, kTriedKey.micro_batch + 1};
  require(
      same_bits(tried.evaluate(again, buffers, other), outputs),
      "the forward in evaluation gives other bits in another step: it draws random numbers, or keeps state");
  require(!draws || !takes_statistics(tried, outputs),
          "the forward ignores Mode::evaluate: a sample's output depends on the others of its micro-batch, "
          "and on none of the buffers that training changes");
}

}  // namespace

bool LayerChecked::passed() const {
  return std::ranges::none_of(
      aspects, [](const Checked& checked) { return checked.result == Checked::Result::failed; });
}

std::vector<std::string> LayerChecked::failures() const {
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < aspects.size(); ++i) {
    if (aspects[i].result != Checked::Result::failed) continue;
    std::string name(enum_names<Aspect>[i]);
    std::ranges::replace(name, '_', ' ');
    lines.push_back(fmt::format("{}: {}", name, aspects[i].said));
  }
  return lines;
}

LayerChecked check_layer(const Layer& layer, const LayerTrial& trial) {
  const c10::InferenceMode normal(false);
  const c10::NoGradGuard no_grad;
  LayerChecked checked;
  LayerMaterials materials;
  std::optional<TriedLayer> tried;
  const bool runs = attempt(checked[Aspect::output], [&] {
    materials = materials_for(layer, trial, trial.precision);
    tried.emplace(layer, materials);
    return check_output(*tried, trial);
  });
  if (!runs) return checked;
  const auto hold = [&](Aspect aspect, const auto& require_it) {
    attempt(checked[aspect], [&] {
      require_it();
      return "";
    });
  };
  hold(Aspect::in_place, [&] { check_in_place(*tried); });
  hold(Aspect::deterministic, [&] { require_repeats(*tried); });
  hold(Aspect::micro_batches, [&] { require_apart(*tried); });
  hold(Aspect::evaluation, [&] { check_evaluation(*tried, trial.draws); });
  check_layer_gradients(layer, trial, checked);
  return checked;
}

}  // namespace stagecraft
