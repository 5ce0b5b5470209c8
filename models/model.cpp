#include "models/model.h"

#include "base/files.h"
#include "base/fingerprint.h"
#include "base/table.h"
#include "models/layers/work_text.h"
#include "models/tensors/libtorch_error.h"
#include "models/tensors/random.h"
#include "models/tensors/shape_text.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

namespace stagecraft {
namespace {

std::int64_t elements(const std::vector<std::int64_t>& shape) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return count;
}

/// What a layer reads of a parameter.
at::ScalarType dtype_of(const ParameterSpec& spec, Precision precision) {
  return spec.full ? precision.full : precision.compute;
}

/// What the layer makes of `inputs`, all on the meta device.
Bundle dry_forward(const Layer& layer, const Bundle& inputs, Precision precision) {
  const auto meta = at::TensorOptions(at::kMeta);
  Tensors parameters, buffers;
  for (const ParameterSpec& spec : layer.parameters()) {
    parameters.push_back(at::empty(spec.shape, meta.dtype(dtype_of(spec, precision))));
  }
  for (const BufferSpec& spec : layer.buffers()) {
    buffers.push_back(at::empty(spec.shape, meta.dtype(spec.dtype.value_or(precision.full))));
  }
  return layer.forward_bundle({parameters, buffers}, inputs, {Mode::evaluate, {}}, nullptr);
}

/// Where a layer cannot take its input, and that is of a type which the run does not compute in: who made it.
std::string note_on_input(const Bundle& input, const LayerSite& site, Precision precision) {
  for (const at::Tensor& value : input) {
    const at::ScalarType dtype = value.scalar_type();
    if (!c10::isFloatingType(dtype) || dtype == precision.compute || site.from.empty()) continue;
    return fmt::format("; its input is of {}, as layer \"{}\" gives it, and the run computes in {}",
                       c10::toString(dtype), site.from, precision.name());
  }
  return "";
}

/// Whether one of the tensors is.
bool is_of(const Bundle& bundle, at::ScalarType dtype) {
  return std::any_of(bundle.begin(), bundle.end(),
                     [&](const at::Tensor& tensor) { return tensor.scalar_type() == dtype; });
}

/// Whether it reads parameters in the type that the run computes in.
bool reads_copies(const Layer& layer) {
  const std::vector<ParameterSpec>& specs = layer.parameters();
  return std::any_of(specs.begin(), specs.end(), [](const auto& spec) { return !spec.full; });
}

bool ends_residual(const Layer& layer) {
  const std::vector<ParameterSpec>& specs = layer.parameters();
  return std::any_of(specs.begin(), specs.end(), [](const auto& spec) { return spec.initial.ends_residual; });
}

at::Tensor dry_input(const SampleSpec& sample, at::ScalarType dtype, const BatchSize& size) {
  std::vector<std::int64_t> shape = sample.cut(sample.shape, size.length);
  shape.insert(shape.begin(), size.samples);
  return at::empty(shape, at::TensorOptions(at::kMeta).dtype(sample.dtype == at::kLong ? at::kLong : dtype));
}

/// For samples that the data set has, whatever their size.
at::Tensor first_boundary(const SampleSpec& sample, Precision precision, const InputPlace& place) {
  try {
    return dry_input(sample, precision.compute, {2});
  } catch (const c10::Error& error) {
    throw InputError({place.file, "/data"},
                     fmt::format("samples of {}: {}", shape_text(sample.shape), one_line(error)));
  }
}

std::string model_fingerprint(const Model& model) {
  std::string text =
      fmt::format("{} {} {} {}\n", shape_text(model.sample.shape), c10::toString(model.sample.dtype),
                  model.sample.classes, c10::toString(model.precision.full));
  if (model.precision.mixed()) text += fmt::format("{}\n", c10::toString(model.precision.compute));
  if (model.precision.products != MatrixProducts::blas) {
    text += fmt::format("{} products\n", enum_name(model.precision.products));
  }
  for (const LayerPtr& layer : model.layers) {
    text += layer->facts().type + " " + layer->facts().details;
    for (const ParameterSpec& spec : layer->parameters()) {
      text += fmt::format(" {}{}", spec.name, shape_text(spec.shape));
    }
    text += '\n';
  }
  for (const Tie& tie : model.ties) {
    text += "tie";
    for (const Tie::Holder& holder : tie.holders)
      text += fmt::format(" {}.{}", holder.layer, holder.parameter);
    text += '\n';
  }
  for (const BatchField& field : model.fields) {
    text += field.from.empty() ? fmt::format("field {} {:.17g}\n", field.name, field.fill)
                               : fmt::format("field {} {}\n", field.name, field.from);
  }
  if (model.loss != nullptr) text += "loss " + model.loss->details() + "\n";
  return fingerprint(text);
}

at::Tensor copy_of(const at::Tensor& value, at::Device device, at::ScalarType dtype) {
  return value.to(device, dtype, /*non_blocking=*/false, /*copy=*/true);
}

void check_initial(const at::Tensor& value, const std::string& name, const std::vector<std::int64_t>& shape) {
  if (value.sizes() == at::IntArrayRef(shape)) return;
  throw InternalError(fmt::format("the initial value of {} is of {}, and its spec says {}", name,
                                  shape_text(value.sizes()), shape_text(shape)));
}

double deviation(const Initial& initial, const Model& model) {
  if (!initial.ends_residual) return initial.scale;
  return initial.scale / std::sqrt(static_cast<double>(std::max<std::int64_t>(model.residual_layers, 1)));
}

}  // namespace

std::string Precision::name() const {
  switch (compute) {
    case at::kFloat:
      return "float32";
    case at::kDouble:
      return "float64";
    case at::kBFloat16:
      return "bfloat16";
    case at::kHalf:
      return "float16";
    default:
      return c10::toString(compute);
  }
}

Bytes parameter_bytes(const Model& model, int layer) {
  constexpr std::int64_t kMost = kMostParameterBytes.value;
  std::int64_t count = 0;
  for (const ParameterSpec& spec : model.layers.at(static_cast<std::size_t>(layer))->parameters()) {
    count = std::min(kMost, count + std::min(kMost, elements(spec.shape)));
  }
  return Bytes{count * static_cast<std::int64_t>(c10::elementSize(model.precision.full))};
}

int first_trained(const std::vector<LayerPtr>& layers) {
  const auto found = std::find_if(layers.begin(), layers.end(),
                                  [](const LayerPtr& layer) { return !layer->parameters().empty(); });
  return found == layers.end() ? 0 : static_cast<int>(found - layers.begin());
}

std::vector<Tie> ties_between(const std::vector<LayerPtr>& layers, const InputPlace& place) {
  std::vector<Tie> all;
  std::map<std::string, std::pair<std::size_t, ParameterSpec>> known;  // position in `all`, and what it is
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const std::vector<ParameterSpec>& specs = layers[i]->parameters();
    for (std::size_t j = 0; j < specs.size(); ++j) {
      const ParameterSpec& spec = specs[j];
      if (spec.tied.empty()) continue;
      const Tie::Holder holder{static_cast<int>(i), static_cast<int>(j)};
      const auto [found, fresh] = known.try_emplace(spec.tied, all.size(), spec);
      if (fresh) {
        all.push_back({spec.tied, {holder}});
        continue;
      }
      const auto& [at, first] = found->second;
      if (all[at].holders.back().layer == holder.layer || spec.shape != first.shape ||
          spec.decays != first.decays || spec.full != first.full) {
        throw InputError(
            place, fmt::format("layer \"{}\" holds {} {}, tied to {} of layer \"{}\": expected one "
                               "weight of one shape, and each layer to hold it once",
                               layers[i]->name(), spec.name, shape_text(spec.shape), shape_text(first.shape),
                               layers[static_cast<std::size_t>(all[at].holders.front().layer)]->name()));
      }
      all[at].holders.push_back(holder);
    }
  }
  std::erase_if(all, [](const Tie& tie) { return tie.holders.size() < 2; });
  return all;
}

Tie::Holder Model::owner_of(int layer, int parameter) const {
  for (const Tie& tie : ties) {
    for (const Tie::Holder& holder : tie.holders) {
      if (holder.layer == layer && holder.parameter == parameter) return tie.holders.front();
    }
  }
  return {layer, parameter};
}

std::int64_t Model::parameter_count() const {
  std::int64_t count = 0;
  for (std::size_t layer = 0; layer < layers.size(); ++layer) {
    const std::vector<ParameterSpec>& specs = layers[layer]->parameters();
    for (std::size_t i = 0; i < specs.size(); ++i) {
      if (owns(static_cast<int>(layer), static_cast<int>(i))) count += elements(specs[i].shape);
    }
  }
  return count;
}

std::int64_t Model::multiply_adds() const {
  const std::vector<BoundarySpec> inputs = boundaries(*this, 1);
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    sum += layers[i]->multiply_adds(inputs[i].values.front().of_one_sample());
  }
  return sum;
}

std::vector<BatchField> Model::fields_of(int first, int last, const Loss* loss_too) const {
  std::set<std::string> names;
  for (int layer = first; layer < last; ++layer) {
    for (const std::string& field : layers[static_cast<std::size_t>(layer)]->facts().fields)
      names.insert(field);
  }
  if (loss_too != nullptr) {
    for (const std::string& field : loss_too->fields()) names.insert(field);
  }
  std::vector<BatchField> read;
  for (const BatchField& field : fields) {
    if (names.erase(field.name) > 0) read.push_back(field);
  }
  STAGECRAFT_CHECK(names.empty(), "a layer reads a field that the model does not have");
  return read;
}

at::Tensor Model::boundary_of(const at::Tensor& inputs) const {
  return inputs.is_floating_point() ? inputs.to(precision.compute) : inputs;
}

Model build_model(const ModelConfig& config, const SampleSpec& sample, Precision precision,
                  const InputPlace& place) {
  const c10::InferenceMode guard;
  const LayerList list = named([&] { return fmt::format("model family \"{}\"", config.family.name()); },
                               [&] {
                                 return config.family.make({sample, place});
                               },
                               PlaceInput::no);
  if (list.layers.size() > kMostLayers) {
    throw InputError(place,
                     fmt::format("{} layers; a model has at most {}", list.layers.size(), kMostLayers));
  }

  Model model;
  model.name = list.name;
  model.sample = sample;
  model.precision = precision;
  Bundle boundary{first_boundary(sample, precision, place)};
  Bytes parameters;
  bool computes_narrowly = is_of(boundary, precision.compute);
  for (std::size_t i = 0; i < list.layers.size(); ++i) {
    LayerSite site;
    site.name = list.layers[i].name;
    site.two = boundary.front().sizes().vec();
    if (boundary.front().dim() > 0) site.input = boundary.front().sizes().slice(1).vec();
    site.input_dtype = boundary.front().scalar_type();
    if (i > 0) site.from = list.layers[i - 1].name;
    site.vocabulary = sample.dtype == at::kLong ? sample.classes : 0;
    site.place =
        list.in_config ? InputPlace{place.file, fmt::format("{}/layers/{}", place.pointer, i)} : place;
    site.linear_deviation = list.linear_deviation;
    site.products = precision.products;
    if (list.in_config && site.two.front() != 2) {
      site.refuse("samples are not its first dimension; use the family \"captured\"");
    }
    if (list.in_config && boundary.size() > 1) {
      site.refuse(fmt::format("{} tensors go on before it; use the family \"captured\"", boundary.size()));
    }
    try {
      LayerPtr layer = list.layers[i].layer.make(site);
      if (layer == nullptr) throw InternalError("what makes it gives a null pointer");
      model.layers.push_back(std::move(layer));
      model.residual_layers += ends_residual(*model.layers.back());
      boundary = dry_forward(*model.layers.back(), boundary, precision);
      computes_narrowly |= is_of(boundary, precision.compute) || reads_copies(*model.layers.back());
      parameters += parameter_bytes(model, static_cast<int>(i));
      if (parameters > kMostParameterBytes) {
        throw InputError(site.place, fmt::format("layer \"{}\": the parameters up to here take {}, more than "
                                                 "any machine has; make the sizes smaller",
                                                 site.name, format_bytes(parameters)));
      }
    } catch (const c10::Error& error) {  // sizes that no tensor can have
      throw InputError(site.place, fmt::format("layer \"{}\": {}{}", site.name, one_line(error),
                                               note_on_input(boundary, site, precision)));
    } catch (...) {
      std::rethrow_exception(place_error(std::current_exception(),
                                         fmt::format("layer \"{}\" ({}), made for a sample of {}", site.name,
                                                     list.layers[i].layer.name(), shape_text(site.input))));
    }
  }
  if (precision.mixed() && !computes_narrowly) {
    throw InputError(place,
                     fmt::format("the run computes in {}, and no layer does: all are of {}; leave bf16 and "
                                 "fp16 out of the config, or capture the model with --dtype {}",
                                 precision.name(), Precision(precision.full).name(), precision.name()));
  }
  model.fields = list.fields;
  model.loss = list.loss;
  model.shorter = list.shorter;
  model.why_no_loss = list.why_no_loss;
  model.note = list.note;
  model.compiled_for = list.compiled_for;
  for (const LayerPtr& layer : model.layers) {
    for (const std::string& name : layer->facts().fields) {
      const auto named = [&](const BatchField& field) { return field.name == name; };
      if (std::any_of(model.fields.begin(), model.fields.end(), named)) continue;
      throw InputError(place, fmt::format("layer \"{}\" reads the field \"{}\" of the batch, which only its "
                                          "whole model can find: use the family \"captured\"",
                                          layer->name(), name));
    }
  }
  model.ties = ties_between(model.layers, place);
  model.gradient_from = first_trained(model.layers);
  model.fingerprint = model_fingerprint(model);
  return model;
}

std::vector<BoundarySpec> boundaries(const Model& model, const BatchSize& micro_batch) {
  const c10::InferenceMode guard;
  std::vector<BoundarySpec> specs;
  try {
    Bundle boundary{dry_input(model.sample, model.precision.compute, micro_batch)};
    specs.emplace_back(boundary);
    for (const LayerPtr& layer : model.layers) {
      boundary = dry_forward(*layer, boundary, model.precision);
      specs.emplace_back(boundary);
    }
  } catch (const c10::Error& error) {
    const std::string place = specs.empty() ? "the input" : model.layers[specs.size() - 1]->name();
    throw InputError(
        fmt::format("{} with micro-batches of {} samples: {}", place, micro_batch.samples, one_line(error)));
  } catch (...) {
    const std::size_t layer = std::max<std::size_t>(specs.size(), 1) - 1;
    std::rethrow_exception(place_error(std::current_exception(),
                                       work_text(*model.layers.at(layer), "forward on the meta device")));
  }
  return specs;
}

Tensors initial_parameters(const Model& model, int layer, std::uint64_t seed, at::Device device) {
  Tensors parameters;
  const Layer& its = *model.layers.at(static_cast<std::size_t>(layer));
  for (const ParameterSpec& spec : its.parameters()) {
    if (const at::Tensor own = its.initial_parameter(static_cast<int>(parameters.size())); own.defined()) {
      check_initial(own, spec.name, spec.shape);
      parameters.push_back(copy_of(own, device, model.precision.full));
      continue;
    }
    const Tie::Holder owner = model.owner_of(layer, static_cast<int>(parameters.size()));
    RandomStream stream{{seed, static_cast<std::uint64_t>(owner.layer), 0, 0},
                        kInitialStream + static_cast<std::uint32_t>(owner.parameter)};
    at::Tensor value = at::empty(spec.shape, model.precision.full);
    switch (spec.initial.kind) {
      case Initial::Kind::zeros:
        value.zero_();
        break;
      case Initial::Kind::ones:
        value.fill_(1);
        break;
      case Initial::Kind::normal:
        fill_normal(value, stream, deviation(spec.initial, model));
        break;
      case Initial::Kind::uniform:
        fill_uniform(value, stream, spec.initial.scale);
        break;
    }
    parameters.push_back(value.to(device));
  }
  return parameters;
}

Tensors compute_copy(const Model& model, int layer, const Tensors& parameters) {
  if (!model.precision.mixed()) return parameters;
  Tensors copies;
  const auto specs = model.layers.at(static_cast<std::size_t>(layer))->parameters();
  for (std::size_t i = 0; i < specs.size(); ++i) {
    copies.push_back(parameters[i].to(dtype_of(specs[i], model.precision), /*non_blocking=*/false,
                                      /*copy=*/true));
  }
  return copies;
}

Tensors initial_buffers(const Model& model, int layer, at::Device device) {
  Tensors buffers;
  const Layer& its = *model.layers.at(static_cast<std::size_t>(layer));
  for (const BufferSpec& spec : its.buffers()) {
    const at::ScalarType dtype = spec.dtype.value_or(model.precision.full);
    const at::Tensor own = its.initial_buffer(static_cast<int>(buffers.size()));
    if (own.defined()) check_initial(own, spec.name, spec.shape);
    buffers.push_back(own.defined()
                          ? copy_of(own, device, dtype)
                          : at::full(spec.shape, spec.initial, at::TensorOptions(device).dtype(dtype)));
  }
  return buffers;
}

}  // namespace stagecraft
