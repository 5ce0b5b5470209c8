#include "engine/run/materials.h"

#include <fmt/format.h>

namespace stagecraft {
namespace {

/// The last layer's output must be something the loss can take; better said here than by a kernel.
void check_loss(const Model& model, const LossConfig& loss, const std::string& file) {
  const std::vector<BoundarySpec> shapes = boundaries(model, 2);
  const std::vector<std::int64_t>& output = shapes.back().shape;
  const bool tokens = model.sample.dtype == at::kLong;
  const auto refuse = [&](const std::string& why) { throw InputError({file, "/loss/type"}, why); };
  if (loss.type == LossKind::token_cross_entropy && output.size() != 3) {
    refuse(fmt::format(
        "token_cross_entropy needs an output of [tokens, classes] a sample, but {} gives {} dimensions",
        model.name, output.size() - 1));
  }
  if (loss.type == LossKind::cross_entropy && (output.size() != 2 || tokens)) {
    refuse(fmt::format(
        "cross_entropy needs one class a sample; {}",
        tokens ? "text has one a token: use token_cross_entropy"
               : fmt::format("the output of {} has {} dimensions", model.name, output.size() - 1)));
  }
  if (loss.type != LossKind::mse && output.back() < model.sample.classes) {
    refuse(fmt::format("the data has {} classes, but the output of {} has {}", model.sample.classes,
                       model.name, output.back()));
  }
}

}  // namespace

at::ScalarType scalar_type(DType dtype) { return dtype == DType::float64 ? at::kDouble : at::kFloat; }

Materials open_materials(const RunConfig& config, const std::string& file) {
  Materials materials{open_dataset(config.data, {file, "/data"}), Model{}, Loss(config.loss)};
  const std::int64_t samples = materials.data->size(Split::train);
  if (config.train_batch_size > samples) {
    throw InputError({file, "/train_batch_size"},
                     fmt::format("a batch of {} samples is more than the {} training samples there are",
                                 config.train_batch_size, samples));
  }
  materials.model =
      build_model(config.model, materials.data->sample(), scalar_type(config.dtype), {file, "/model"});
  check_loss(materials.model, config.loss, file);
  return materials;
}

RunShape run_shape(const RunConfig& config, const Dataset& data, bool synchronous) {
  RunShape shape;
  shape.samples = data.size(Split::train);
  shape.validation_samples = data.size(Split::validation);
  shape.batch = config.train_batch_size;
  shape.micro_batch = config.micro_batch_size;
  shape.validate_every = config.validation.every_steps;
  shape.checkpoint_every = config.checkpoint.every_steps;
  shape.synchronous = synchronous;
  shape.drop_last = config.data.drop_last;
  shape.steps = config.train_steps ? *config.train_steps : *config.epochs * steps_per_epoch(shape);
  return shape;
}

std::int64_t tokens_per_sample(const Materials& materials) {
  const SampleSpec& sample = materials.model.sample;
  return sample.dtype == at::kLong && !sample.shape.empty() ? sample.shape.front() : 0;
}

}  // namespace stagecraft
