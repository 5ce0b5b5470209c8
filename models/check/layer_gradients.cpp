#include "models/check/layer_gradients.h"

#include "models/check/gradient_compare.h"
#include "models/check/tried_layer.h"
#include "models/check/watch.h"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace stagecraft {
namespace {

/// Of the inputs that have one, then of the parameters.
struct Compared {
  std::vector<GradientVerdict> verdicts;
  std::size_t of_inputs = 0;
};

/// Whether it computes in double precision, as it should for tests.
bool computes_double(const Layer& layer, const LayerTrial& trial) {
  if (trial.precision.full == at::kDouble) return true;
  try {
    const LayerMaterials materials = materials_for(layer, trial, Precision{at::kDouble});
    const LayerMaterials with = TriedLayer(layer, materials).copy();
    Tensors buffers = with.buffers;
    const Bundle made = train_forward(layer, with, with.first, buffers, nullptr);
    return std::ranges::all_of(made, [](const at::Tensor& value) {
      return !value.is_floating_point() || value.scalar_type() == at::kDouble;
    });
  } catch (...) {
    return false;  // the check in single precision says what is wrong, if anything is
  }
}

/// The sum of what the forward gives, weighed by `gradients`: a function of `of`, the inputs at `places` and then the
/// parameters.
at::Tensor weighed(const TriedLayer& tried, const Tensors& of, const std::vector<std::size_t>& places,
                   const Bundle& gradients) {
  LayerMaterials with = tried.copy();
  for (std::size_t i = 0; i < places.size(); ++i) with.first.inputs[places[i]] = of[i];
  for (std::size_t i = 0; i < with.copies.size(); ++i) with.copies[i] = of[places.size() + i];
  Tensors buffers = with.buffers;
  at::Tensor sum = at::zeros({}, at::kDouble);
  std::size_t k = 0;
  for (const at::Tensor& value : train_forward(tried.layer(), with, with.first, buffers, nullptr)) {
    if (value.is_floating_point()) sum = sum + (value * gradients[k++]).sum(at::kDouble);
  }
  return sum;
}

Compared compare(const TriedLayer& tried) {
  const LayerMaterials& materials = tried.materials();
  Compared compared;
  Tensors of;
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < materials.first.inputs.size(); ++i) {
    if (!materials.first.inputs[i].is_floating_point()) continue;
    places.push_back(i);
    of.push_back(materials.first.inputs[i]);
  }
  compared.of_inputs = of.size();
  of.insert(of.end(), materials.copies.begin(), materials.copies.end());

  const LayerMaterials with = tried.copy();
  Tensors buffers = with.buffers;
  Kept kept;
  const Bundle outputs = train_forward(tried.layer(), with, with.first, buffers, &kept);
  const Bundle gradients = drawn_gradients(outputs);
  if (gradients.empty()) return compared;
  const Bundle before = tried.backward_input(with, clones(gradients), kept);
  require(before.size() == compared.of_inputs,
          fmt::format("backward gives {} gradients, and {} of its inputs have one", before.size(),
                      compared.of_inputs));
  Tensors ours(of.size());
  std::copy(before.begin(), before.end(), ours.begin());
  GradientAccumulator sums = tried.accumulator();
  tried.backward_weight(kept, sums);
  const std::vector<bool> received = sums.received();
  for (std::size_t i = 0; i < received.size(); ++i) {
    if (received[i]) ours[compared.of_inputs + i] = sums.memory()[i];
  }
  const Scalar scalar = [&](const Tensors& values) { return weighed(tried, values, places, gradients); };
  compared.verdicts = compare_gradients(scalar, of, ours);
  return compared;
}

void add(Checked& checked, const GradientVerdict& verdict, const std::string& name, const std::string& in) {
  const bool failed = checked.result == Checked::Result::failed;
  if (!verdict.holds) {
    const std::string said = name + verdict.said;
    checked = {Checked::Result::failed, failed ? checked.said + "; " + said : said};
  } else if (!failed && !checked.said.starts_with("differences")) {  // one that autograd does not see says so
    checked = {Checked::Result::passed, verdict.said + in};
  }
}

}  // namespace

void check_layer_gradients(const Layer& layer, const LayerTrial& trial, LayerChecked& checked) {
  Checked& of_input = checked[Aspect::input_gradient];
  Checked& of_weights = checked[Aspect::weight_gradients];
  const std::vector<ParameterSpec>& parameters = layer.parameters();
  const bool has_input = std::ranges::any_of(trial.first.inputs, [](const at::Tensor& value) {
    return value.defined() && value.is_floating_point();
  });
  if (!trial.draws) {
    if (has_input) of_input = {Checked::Result::passed, "as captured"};
    if (!parameters.empty()) of_weights = {Checked::Result::passed, "as captured"};
    return;
  }
  Compared compared;
  Checked all;
  attempt(all, [&] {
    const bool in_double = computes_double(layer, trial);
    const LayerMaterials materials =
        materials_for(layer, trial, Precision{in_double ? at::kDouble : at::kFloat});
    compared = compare(TriedLayer(layer, materials));
    return in_double ? "" : ", in float32";
  });
  if (all.result == Checked::Result::failed) {
    if (has_input || parameters.empty()) of_input = all;
    if (!parameters.empty()) of_weights = std::move(all);
    return;
  }
  for (std::size_t i = 0; i < compared.verdicts.size(); ++i) {
    if (i < compared.of_inputs) {
      add(of_input, compared.verdicts[i], "", all.said);
    } else {
      add(of_weights, compared.verdicts[i], fmt::format("\"{}\": ", parameters[i - compared.of_inputs].name),
          all.said);
    }
  }
}

}  // namespace stagecraft
