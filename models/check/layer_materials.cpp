#include "models/check/layer_materials.h"

#include "models/check/watch.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

namespace stagecraft {
namespace {

enum class Drawn : std::uint8_t { all, inputs, nothing };

at::ScalarType dtype_in(at::ScalarType its, Precision precision) {
  return precision.compute == at::kDouble ? at::kDouble : its;
}

/// Double precision is for all that are numbers; a run's own types are what they are there.
LayerInput input_in(const LayerInput& given, Precision precision, Drawn drawn) {
  LayerInput made;
  for (const at::Tensor& value : given.inputs) {
    if (!value.defined() || !value.is_floating_point()) {
      made.inputs.push_back(value.defined() ? value.clone() : value);
      continue;
    }
    const at::Tensor numbers =
        drawn == Drawn::nothing ? value.to(at::kDouble) : at::randn(value.sizes(), at::kDouble);
    made.inputs.push_back(numbers.to(dtype_in(value.scalar_type(), precision), /*non_blocking=*/false,
                                     /*copy=*/true));
  }
  made.fields = given.fields;
  return made;
}

LayerMaterials made(const Layer& layer, const LayerTrial& trial, Precision precision, Drawn drawn) {
  LayerMaterials materials;
  materials.first = input_in(trial.first, precision, drawn);
  materials.second = input_in(trial.second, precision, drawn);
  const std::vector<ParameterSpec>& parameters = layer.parameters();
  const bool own_weights = drawn != Drawn::all && trial.parameters.size() == parameters.size();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor value =
        own_weights ? trial.parameters[i] : at::randn(parameters[i].shape, at::kDouble).mul_(0.5);
    materials.parameters.push_back(value.to(precision.full, false, /*copy=*/true));
    materials.copies.push_back(materials.parameters.back().to(
        parameters[i].full ? precision.full : precision.compute, false, /*copy=*/true));
  }
  const std::vector<BufferSpec>& buffers = layer.buffers();
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    const at::ScalarType dtype = buffers[i].dtype.value_or(precision.full);
    // Positive: they may be variances. What a layer brings may be a table.
    const bool draw = drawn == Drawn::all && c10::isFloatingType(dtype) &&
                      !layer.initial_buffer(static_cast<int>(i)).defined();
    const at::Tensor value = draw || i >= trial.buffers.size()
                                 ? at::rand(buffers[i].shape, at::kDouble).add_(0.5)
                                 : trial.buffers[i];
    materials.buffers.push_back(value.to(dtype, false, /*copy=*/true));
  }
  return materials;
}

bool gives_finite(const Layer& layer, const LayerMaterials& materials) {
  try {
    const c10::NoGradGuard no_grad;
    Tensors buffers = clones(materials.buffers);
    const LayerInput copy{clones(materials.first.inputs), materials.first.fields};
    LayerMaterials weights = materials;
    weights.copies = clones(materials.copies);
    return all_finite(train_forward(layer, weights, copy, buffers, nullptr));
  } catch (...) {
    return false;
  }
}

}  // namespace

bool all_finite(const Bundle& values) {
  for (const at::Tensor& value : values) {
    if (value.defined() && value.is_floating_point() && !value.isfinite().all().item<bool>()) return false;
  }
  return true;
}

LayerMaterials materials_for(const Layer& layer, const LayerTrial& trial, Precision precision) {
  if (trial.draws) {
    for (const Drawn drawn : {Drawn::all, Drawn::inputs}) {
      LayerMaterials materials = made(layer, trial, precision, drawn);
      if (gives_finite(layer, materials)) return materials;
    }
  }
  return made(layer, trial, precision, Drawn::nothing);
}

Bundle train_forward(const Layer& layer, const LayerMaterials& materials, const LayerInput& input,
                     Tensors& buffers, Kept* kept, bool commit_buffers) {
  RandomKey key = kTriedKey;
  if (&input == &materials.second) ++key.micro_batch;
  return layer.forward_bundle({materials.copies, buffers}, input.inputs,
                              {Mode::train, key, commit_buffers, &input.fields}, kept);
}

Bundle drawn_gradients(const Bundle& outputs) {
  Bundle gradients;
  for (const at::Tensor& value : outputs) {
    if (value.defined() && value.is_floating_point()) gradients.push_back(at::randn_like(value.contiguous()));
  }
  return gradients;
}

}  // namespace stagecraft
