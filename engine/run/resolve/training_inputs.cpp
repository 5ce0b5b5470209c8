#include "engine/run/resolve/training_inputs.h"

#include "models/captured/replay/repeats.h"
#include "models/check/checked_data.h"
#include "models/data/buckets.h"
#include "models/data/held_to_its_word.h"
#include "models/tensors/known_processor.h"
#include "models/tensors/libtorch_error.h"
#include "partitioner/plan/plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace stagecraft {
namespace {

const char* description(Targets targets) {
  return targets == Targets::classes  ? "one class per sample"
         : targets == Targets::tokens ? "one class per token"
                                      : "numbers";
}

/// The losses for such targets, as a sentence names them.
std::string losses_for(Targets targets) {
  std::vector<std::string> names;
  for (const auto& entry : losses().entries()) {
    LossConfig loss;
    loss.type.set(entry, entry->copy(nullptr));
    if (loss.make()->targets() == targets) names.push_back(entry->name);
  }
  return fmt::format("{}", fmt::join(names, " or "));
}

/// The loss must fit the data's targets, and the model's output both; better said here than by a kernel.
void check_loss(const Model& model, const Loss& loss, const std::string& name, const std::string& file) {
  if (!loss.reads_targets()) return;  // the model's own: its fields were compared with the data
  if (const Targets targets = model.sample.targets; loss.targets() != targets) {
    if (targets == Targets::none) {
      throw InputError(
          {file, "/loss/type"},
          fmt::format("{} compares with targets, and the data has none: name them in data.targets, "
                      "or leave the loss out where the model brings its own",
                      name));
    }
    const FieldSpec its = *model.sample.field("targets");
    throw InputError(
        {file, "/loss/type"},
        fmt::format("{} does not fit the data, whose targets are {}{}: use {}{}", name, description(targets),
                    its.shape.empty() ? "" : fmt::format(", [{}] of each sample", fmt::join(its.shape, ", ")),
                    losses_for(targets), its.shape.empty() ? "" : ", or reshape them"));
  }
  const ValueSpec output = boundaries(model, 2).back().values.front();
  if (output.shape.empty()) {
    throw InputError({file, "/model"}, fmt::format("{} gives one number for all samples, but {} needs some "
                                                   "of each",
                                                   model.name, name));
  }
  const std::vector<std::int64_t> of_one = output.of_one_sample();
  const std::string needed = loss.misfit(of_one, model.sample);
  if (needed.empty()) return;
  throw InputError({file, "/model"}, fmt::format("{} gives [{}] per sample, but {} needs {}", model.name,
                                                 fmt::join(of_one, ", "), name, needed));
}

/// What the data are, the model must see: documents in a row stay apart by their positions alone.
void check_needed_fields(const Dataset& data, const Model& model, const std::string& file) {
  const std::vector<BatchField> read =
      model.fields_of(0, static_cast<int>(model.layers.size()), model.loss.get());
  for (const FieldSpec& field : data.sample().fields) {
    const bool is_read =
        std::any_of(read.begin(), read.end(), [&](const BatchField& f) { return f.from == field.name; });
    if (!field.needed || is_read) continue;
    throw InputError(
        {file, "/data"},
        fmt::format(
            "{} does not read the field \"{}\", without which these samples mean something else: capture "
            "it with --fields labels,{}, or use \"documents\": \"packed\"",
            model.name, field.name, field.name));
  }
}

/// On GPUs, where the same bits are asked for: what LibTorch would refuse in the middle of a step.
void check_repeats(const RunConfig& config, const Model& model, const Loss& loss, const std::string& file) {
  if (config.device == DeviceKind::cpu || !config.cuda.deterministic) return;
  const auto check = [&](const std::string& of, const std::string& step) {
    if (step.empty()) return;
    throw InputError(
        {file, "/cuda/deterministic"},
        fmt::format("{} has {}, for which LibTorch has no kernel on GPUs that gives the same bits "
                    "every time: set it to false, or capture the model with another operator there",
                    of, step));
  };
  for (const auto& layer : model.layers)
    check(fmt::format("layer \"{}\"", layer->name()), captured::refused_step(*layer));
  check("the model's loss", captured::refused_step(loss));
}

/// The config's, or the model's own. Needs the model.
std::shared_ptr<const Loss> loss_of(const RunConfig& config, const Model& model, const std::string& file) {
  if (config.loss) return config.loss->make();
  if (model.loss != nullptr) return model.loss;
  if (!model.why_no_loss.empty()) {
    throw InputError({file, "/model/fields"}, model.why_no_loss + ", or give a loss in its place");
  }
  const std::string fitting = losses_for(model.sample.targets);
  throw InputError(
      {file, "/loss"},
      fmt::format("is missing: {} brings no loss of its own{}", model.name,
                  fitting.empty() ? ", and no built-in one reads this data; capture the model with its loss"
                                  : "; for this data use " + fitting));
}

/// No micro-batch of an epoch may be too small for a layer: the last one of its last mini-batch is the
/// smallest.
void check_smallest_micro_batch(const Model& model, const RunConfig& config, const Dataset& data,
                                const std::string& file) {
  const RunShape shape = run_shape(config, data, /*synchronous=*/true, file);
  if (shape.steps < 1) return;  // said elsewhere
  MicroBatchRange smallest = step_micro_batches(shape, 0).back();
  const MicroBatchRange last =
      step_micro_batches(shape, std::min(shape.steps, steps_per_epoch(shape)) - 1).back();
  if (last.count < smallest.count) smallest = last;
  const std::vector<BoundarySpec> shapes = boundaries(model, 1);
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    const std::int64_t least = model.layers[i]->least_samples(shapes[i].values.front().of_one_sample());
    if (smallest.count >= least) continue;
    throw InputError(
        {file, "/train_micro_batch_size_per_gpu"},
        fmt::format("layer \"{}\" ({}) needs micro-batches of {} samples, but samples [{}, {}) of an epoch "
                    "make one of {}; use other sizes, or data.drop_last if it is an epoch's last",
                    model.layers[i]->name(), model.layers[i]->facts().type, least, smallest.first,
                    smallest.first + smallest.count, smallest.count));
  }
}

/// The model must take what samples are cut to, and the loss must not notice.
void check_buckets(const RunConfig& config, const Model& model, const Loss& loss, const std::string& file) {
  const std::vector<std::int64_t>& lengths = config.data.buckets;
  for (std::size_t i = 0; i + 1 < lengths.size(); ++i) {
    const auto& takes = model.shorter;
    if (std::find(takes.begin(), takes.end(), lengths[i]) != takes.end()) continue;
    std::vector<std::int64_t> all = takes;
    all.push_back(lengths.back());
    throw InputError(
        {file, fmt::format("/data/buckets/{}", i)},
        fmt::format("{} takes samples of length {}, not of {}: expected a model captured with --lengths {}",
                    model.name, fmt::join(all, ", "), lengths[i], fmt::join(lengths, ",")));
  }
  if (lengths.size() < 2 || loss.targets() != Targets::tokens || loss.counts_units()) return;
  throw InputError({file, "/data/buckets"},
                   "the loss counts the padding too, which buckets cut off: expected one that leaves it out, "
                   "as a captured model's own does with labels of -100");
}

/// Before anything is made of them: a list of a step's micro-batches fills memory by itself.
void check_micro_batches(const RunConfig& config, const Dataset& data, const std::string& file) {
  const auto check = [&](std::int64_t samples, std::int64_t most, const char* what) {
    if (samples < 1 || (samples - 1) / config.micro_batch_size < most) return;
    throw InputError(
        {file, "/train_micro_batch_size_per_gpu"},
        fmt::format("{} of {} samples in micro-batches of {} makes more than {} of them; use larger ones",
                    what, samples, config.micro_batch_size, most));
  };
  check(config.train_batch_size, kMostMicroBatches, "a step");
  check(data.size(Split::validation), kMaxMicroBatches, "a validation");
}

}  // namespace

Precision precision_of(const RunConfig& config) {
  if (config.bf16.enabled) return {at::kFloat, at::kBFloat16};
  if (config.fp16.enabled) return {at::kFloat, at::kHalf};
  Precision precision = config.dtype == DType::float64 ? at::kDouble : at::kFloat;
  precision.products = config.matrix_products.value_or(MatrixProducts::blas);
  return precision;
}

TrainingInputs open_training_inputs(const RunConfig& config, const std::string& file) {
  TrainingInputs inputs = make_training_inputs(config, file, open_dataset(config.data, {file, "/data"}));
  if (const Named<DatasetKind>& source = config.data.source; !source.entry().built_in) {
    check_first_batches(*inputs.data, inputs.loss->reads_targets(), config.micro_batch_size, file,
                        source.name());
  }
  return inputs;
}

TrainingInputs make_training_inputs(const RunConfig& config, const std::string& file,
                                    std::unique_ptr<Dataset> data) {
  require_known_processor();
  TrainingInputs inputs{std::move(data), Model{}, nullptr};
  const std::int64_t samples = inputs.data->size(Split::train);
  if (config.train_batch_size > samples) {
    throw InputError({file, "/train_batch_size"},
                     fmt::format("a batch of {} samples is more than the {} training samples there are",
                                 config.train_batch_size, samples));
  }
  check_micro_batches(config, *inputs.data, file);
  inputs.model = build_model(config.model, inputs.data->sample(), precision_of(config), {file, "/model"});
  check_needed_fields(*inputs.data, inputs.model, file);
  inputs.loss = loss_of(config, inputs.model, file);
  check_repeats(config, inputs.model, *inputs.loss, file);
  check_loss(inputs.model, *inputs.loss, config.loss ? config.loss->type.name() : "its own loss", file);
  check_buckets(config, inputs.model, *inputs.loss, file);
  check_smallest_micro_batch(inputs.model, config, *inputs.data, file);
  inputs.data = checked_for(std::move(inputs.data), inputs.model, *inputs.loss, file);
  inputs.optimizer = named([&] { return fmt::format("optimizer \"{}\"", config.optimizer.type.name()); },
                           [&] {
                             return std::make_shared<const ModelOptimizer>(config.optimizer, inputs.model,
                                                                           InputPlace{file, "/optimizer"});
                           },
                           PlaceInput::no);
  return inputs;
}

RunShape run_shape(const RunConfig& config, const Dataset& data, bool synchronous, const std::string& file) {
  RunShape shape;
  shape.samples = data.size(Split::train);
  shape.validation_samples = data.size(Split::validation);
  shape.batch = config.train_batch_size;
  shape.micro_batch = config.micro_batch_size;
  shape.validate_every = config.validation.every_steps;
  shape.checkpoint_every = config.checkpoint.every_steps;
  shape.synchronous = synchronous;
  shape.synchronous_steps = config.pipeline.synchronous_steps;
  shape.drop_last = config.data.drop_last;
  shape.steps =
      config.train_steps ? *config.train_steps : steps_of_epochs(shape, *config.epochs, {file, "/epochs"});
  return shape;
}

double tokens_per_sample(const TrainingInputs& inputs) {
  return static_cast<double>(inputs.model.sample.tokens({1})) * computed_positions(*inputs.data);
}

}  // namespace stagecraft
