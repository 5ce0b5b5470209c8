#include "engine/core/stage.h"

#include "base/error.h"
#include "models/layers/work_text.h"
#include "models/losses/run_loss.h"
#include "models/tensors/libtorch_error.h"
#include "models/tensors/shape_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace stagecraft {
namespace {

Versions initial_versions(const Model& model, int first, int last, std::uint64_t seed, at::Device device) {
  StageParameters parameters, copies;
  for (int layer = first; layer < last; ++layer) {
    named([&] { return work_text(*model.layers[static_cast<std::size_t>(layer)], "initial weights"); },
          [&] {
            parameters.push_back(initial_parameters(model, layer, seed, device));
            if (model.precision.mixed()) copies.push_back(compute_copy(model, layer, parameters.back()));
          });
  }
  return Versions(std::move(parameters), std::move(copies));
}

/// Values are what the forward on the meta device promised: everything else was planned by that. Shapes depend
/// on the samples, and are the transport's to compare.
void check_values(const Bundle& made, const BoundarySpec& promised) {
  if (made.size() != promised.values.size()) {
    throw InternalError(
        fmt::format("it gives {} tensors, and {} on the meta device", made.size(), promised.values.size()));
  }
  for (std::size_t i = 0; i < made.size(); ++i) {
    if (!made[i].defined()) continue;  // passed by
    const ValueSpec& spec = promised.values[i];
    if (made[i].scalar_type() == spec.dtype && made[i].sizes().size() == spec.shape.size()) continue;
    throw InternalError(fmt::format("it gives {} of {}, and of {} dimensions and {} on the meta device",
                                    shape_text(made[i].sizes()), c10::toString(made[i].scalar_type()),
                                    spec.shape.size(), c10::toString(spec.dtype)));
  }
}

/// Where a tensor's values lie; null for none. Unlike a tensor it keeps nothing alive.
const void* memory_of(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.storage().data() : nullptr;
}

const void* memory_of(const Bundle& bundle) {
  return bundle.size() == 1 ? memory_of(bundle.front()) : nullptr;
}

/// Everything that a forward reads of a batch is input: a recording reads it where it read it first.
void add_fields(Bundle& input, const FieldTensors& fields) {
  for (const auto& [name, field] : fields) input.push_back(field);
}

/// Takes them off again; `fields` has their names.
void take_fields(Tensors& inputs, FieldTensors& fields) {
  const auto first = inputs.end() - static_cast<std::ptrdiff_t>(fields.size());
  auto next = first;
  for (auto& [name, field] : fields) field = std::move(*next++);
  inputs.erase(first, inputs.end());
}

/// Where they lie for the micro-batch; undefined where they do not.
at::Tensor weights_in(const StageGraphs::Pass* pass) {
  return pass != nullptr ? StageGraphs::weights_of(*pass) : at::Tensor();
}

/// What leaves a stage has memory of its own, because what it was made from (a receive slot) may be reused
/// while the result is still on its way. Only stages that merely reshape need the copy; several tensors are
/// packed, which is one.
Bundle detached(Bundle bundle, const void* from) {
  if (from != nullptr && memory_of(bundle) == from) bundle.front() = bundle.front().clone();
  return bundle;
}

}  // namespace

Stage::Stage(const Model& model, const Loss& loss, StageId id, int first, int last, std::uint64_t seed,
             at::Device device, std::function<void()> between_layers,
             const std::shared_ptr<DeviceGraphs>& graphs)
    : loss_(loss),
      id_(id),
      first_(first),
      layers_(model.layers.begin() + first, model.layers.begin() + last),
      between_layers_(std::move(between_layers)),
      products_(model.precision.products),
      versions_(initial_versions(model, first, last, seed, device)),
      optimizer_(layers_.size()) {
  frozen_layers_ = static_cast<std::size_t>(std::clamp(model.gradient_from - first, 0, last - first));
  begins_before_ = model.gradient_from < first;
  for (int layer = first; layer < last; ++layer) {
    buffers_.push_back(initial_buffers(model, layer, device));
    has_parameters_.push_back(!model.layers[static_cast<std::size_t>(layer)]->parameters().empty());
  }
  const std::vector<BoundarySpec> all = boundaries(model, 1);
  between_.assign(all.begin() + first, all.begin() + last + 1);
  const bool repeats = std::all_of(layers_.begin(), layers_.end(),
                                   [](const LayerPtr& layer) { return layer->facts().repeats; });
  if (graphs != nullptr && repeats) graphs_ = std::make_unique<StageGraphs>(graphs, device);
}

Tensors Stage::buffers(int layer, OverReplicas rule) const {
  const std::vector<BufferSpec>& specs = layers_[local(layer)]->buffers();
  Tensors chosen;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    if (specs[i].over_replicas == rule) chosen.push_back(buffers_[local(layer)][i]);
  }
  return chosen;
}

void Stage::begin(const VersionReads& reads) {
  const bool keeps = graphs_ != nullptr;
  versions_.begin(reads, keeps);
  if (!reads.steps && !keeps) spare_.clear();
  read_average(!reads.steps);
}

void Stage::read_average(bool validates) {
  averaged_.clear();
  if (publishes_average_) versions_.publish();
  publishes_average_ = false;
  if (!validates) return;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    Tensors& averages = averaged_.emplace_back();
    if (!has_parameters_[i]) continue;
    for (const auto& named_tensors : optimizer_[i].tensors) {
      const auto found = named_tensors.find(kAveragedWeights);
      if (found != named_tensors.end()) averages.push_back(found->second);
    }
    if (averages.empty()) return averaged_.clear();  // nothing is averaged, or nothing yet
  }
  publishes_average_ = versions_.publish(averaged_);
  if (publishes_average_) averaged_.clear();
}

Bundle Stage::run_layers(Bundle boundary, const ForwardTask& task, bool commit_buffers,
                         std::vector<Kept>* kept) {
  // By reference, though a step may write a version over: it does so only behind the last action that reads
  // it.
  const StageParameters& parameters = averaged_.empty() ? versions_.read(task.version) : averaged_;
  if (kept != nullptr) kept->resize(layers_.size());
  Context context{task.mode, task.key, commit_buffers, &task.fields};
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    context.key.layer = static_cast<std::uint64_t>(first_) + i;
    const bool keeps = kept != nullptr && i >= frozen_layers_;
    boundary = named([&] { return work_text(*layers_[i], "forward", boundary.front()); },
                     [&] {
                       Bundle made = contiguous(layers_[i]->forward_bundle(
                           {parameters[i], buffers_[i]}, boundary, context, keeps ? &(*kept)[i] : nullptr));
                       check_values(made, between_[i + 1]);
                       return made;
                     });
    after_layer();
  }
  return boundary;
}

void Stage::scale_loss(double scale) {
  STAGECRAFT_CHECK(in_flight_.empty() || scale == loss_scale_, "a micro-batch has one scale of its loss");
  loss_scale_ = scale;
}

Stage::MicroBatchWork& Stage::begin(ForwardTask& task, const Bundle& input, std::optional<double> share) {
  if (!spare_works_.empty()) {
    Works::node_type spare = std::move(spare_works_.back());
    spare_works_.pop_back();
    spare.key() = task.micro_batch;
    in_flight_.insert(std::move(spare));
  }
  MicroBatchWork& work = in_flight_[task.micro_batch];
  if (task.recomputed_later) work.kept.layers.clear();  // those of the recompute, which must not be missing
  if (graphs_ == nullptr) return work;
  // The key has all that a recording bakes in: the shapes, where weights and buffers lie, and numbers that
  // the host computes with. Whatever else differs between micro-batches (inputs, their names) is copied to
  // where it reads them.
  GraphKey key;
  key.add(std::uint64_t{task.recomputed_later});
  std::optional<StageGraphs::Weights> weights;
  if (share && loss_.reads_weights()) {
    weights = {*share, loss_scale_};
    key.add(std::uint64_t{*share == 0});
  } else if (share) {
    key.add(*share).add(loss_scale_);
  }
  for (const at::Tensor& value : input) {
    if (!value.defined()) continue;
    for (const std::int64_t size : value.sizes()) key.add(static_cast<std::uint64_t>(size));
  }
  for (const auto* tensors : {&versions_.read(task.version), &std::as_const(buffers_)}) {
    for (const Tensors& layer : *tensors) {
      for (const at::Tensor& tensor : layer) key.add(tensor);
    }
  }
  work.pass =
      graphs_->begin(key, static_cast<std::int64_t>(task.key.step << 32 | task.key.micro_batch), weights);
  if (work.pass != nullptr) task.key.on_device = StageGraphs::name_of(*work.pass);
  return work;
}

/// Behind the micro-batch's last action. What it kept goes before its recording is given to another one,
/// which writes the same memory.
void Stage::end(MicroBatch micro_batch) {
  const auto work = in_flight_.find(micro_batch);
  StageGraphs::Pass* const pass = work->second.pass;
  if (graphs_ ==
      nullptr) {  // tensors go; the vectors that they were in are a step's most frequent allocations
    work->second.kept.clear();
    spare_works_.push_back(in_flight_.extract(work));
  } else {
    in_flight_.erase(work);
  }
  if (pass != nullptr) graphs_->end(*pass);
}

template <class Part>
Tensors Stage::run(MicroBatchWork& work, StageGraphs::PartKind kind, Tensors inputs, Accumulators* sums,
                   const Part& part) {
  if (work.pass == nullptr) return part(std::move(inputs), work.kept);
  // Nobody else may use the device while it records: no transfer moves between the layers, but once behind
  // all of them.
  of_a_pass_ = true;
  Tensors outputs = graphs_->run(*work.pass, kind, std::move(inputs), work.kept, sums, part);
  of_a_pass_ = false;
  between_layers_();
  return outputs;
}

LossValue Stage::loss_of(const at::Tensor& output, const FieldTensors& fields, const LossTask& task,
                         const at::Tensor& weights, Kept* kept, bool count_correct) const {
  LossData data = loss_.reads_targets() ? LossData(task.targets) : LossData(fields);
  data.weights = weights;
  return run_loss(loss_, output, data, task.share, kept, count_correct);
}

Bundle Stage::forward(Bundle input, ForwardTask task) {
  const void* source = memory_of(input);
  if (task.mode == Mode::evaluate) {
    return detached(run_layers(std::move(input), task, /*commit_buffers=*/false, nullptr), source);
  }
  if (frozen()) return detached(run_layers(std::move(input), task, /*commit_buffers=*/true, nullptr), source);
  add_fields(input, task.fields);
  MicroBatchWork& work = begin(task, input, std::nullopt);
  return detached(run(work, StageGraphs::PartKind::forward, std::move(input), nullptr,
                      [&](Tensors inputs, InFlight& kept) -> Tensors {
                        take_fields(inputs, task.fields);
                        if (task.recomputed_later) {
                          // The input is in a receive slot, which stays the micro-batch's until its backward.
                          kept.input = inputs;
                          kept.fields = task.fields;
                        }
                        return run_layers(std::move(inputs), task, /*commit_buffers=*/true,
                                          task.recomputed_later ? nullptr : &kept.layers);
                      }),
                  source);
}

LossValue Stage::forward_loss(Bundle input, ForwardTask task, LossTask loss) {
  if (task.mode == Mode::evaluate) {
    const Bundle output = run_layers(std::move(input), task, /*commit_buffers=*/false, nullptr);
    return loss_of(output.front(), task.fields, loss, {}, nullptr, /*count_correct=*/true);
  }
  input.push_back(std::move(loss.targets));
  add_fields(input, task.fields);
  MicroBatchWork& work = begin(task, input, loss.share);
  const Tensors value =
      run(work, StageGraphs::PartKind::forward, std::move(input), nullptr,
          [&](Tensors inputs, InFlight& kept) -> Tensors {
            take_fields(inputs, task.fields);
            const at::Tensor targets = std::move(inputs.back());
            inputs.pop_back();
            if (task.recomputed_later) {
              kept.input = inputs;
              kept.loss_task = {targets, loss.share, true};
              kept.fields = task.fields;
            }
            const Bundle output = run_layers(std::move(inputs), task, /*commit_buffers=*/true,
                                             task.recomputed_later ? nullptr : &kept.layers);
            const LossValue made =
                loss_of(output.front(), task.fields, {targets, loss.share}, weights_in(work.pass),
                        task.recomputed_later ? nullptr : &kept.loss, /*count_correct=*/false);
            return {made.loss, made.correct, made.terms};
          });
  return {value[0], value[1], value[2]};
}

void Stage::recompute(ForwardTask task) {
  MicroBatchWork& work = in_flight(task.micro_batch);
  STAGECRAFT_CHECK(!work.kept.input.empty(),
                   fmt::format("micro-batch {} was not forwarded for recomputation", task.micro_batch.value));
  if (work.pass != nullptr) task.key.on_device = StageGraphs::name_of(*work.pass);
  (void)run(work, StageGraphs::PartKind::recompute, {}, nullptr, [&](Tensors, InFlight& kept) -> Tensors {
    task.fields = std::exchange(kept.fields, {});
    const Bundle output =
        run_layers(std::exchange(kept.input, {}), task, /*commit_buffers=*/false, &kept.layers);
    if (!kept.loss_task.follows) return {};
    const LossTask loss = std::exchange(kept.loss_task, {});
    (void)loss_of(output.front(), task.fields, loss, weights_in(work.pass), &kept.loss,
                  /*count_correct=*/false);
    return {};
  });
}

Stage::MicroBatchWork& Stage::in_flight(MicroBatch micro_batch) {
  const auto found = in_flight_.find(micro_batch);
  STAGECRAFT_CHECK(found != in_flight_.end(),
                   fmt::format("stage {} has no forward of micro-batch {}", id_.value, micro_batch.value));
  return found->second;
}

Bundle Stage::run_backward(InFlight& work, Version version, Bundle gradients, Accumulators* accumulators,
                           const AfterLayer& added) {
  STAGECRAFT_CHECK(work.layers.size() == layers_.size(), "a recompute is missing before the backward");
  const StageParameters& parameters = versions_.read(version);
  if (gradients.empty()) gradients.push_back(run_loss_backward(loss_, work.loss, loss_scale_));
  // Both halves of a layer together, if both are asked for: what it kept is then free before the next one
  // needs memory.
  for (std::size_t i = layers_.size(); i-- > frozen_layers_;) {
    const bool needs_input_gradient = begins_before_ || i > frozen_layers_;
    // Where the weight half fails of the layer that nothing needs a gradient before, there is none any more.
    named(
        [&] {
          return work_text(*layers_[i], "backward", gradients.empty() ? at::Tensor() : gradients.front());
        },
        [&] {
          gradients = contiguous(
              layers_[i]->backward_bundle(parameters[i], gradients, work.layers[i], needs_input_gradient));
          if (accumulators != nullptr && has_parameters_[i]) {
            layers_[i]->backward_weight(work.layers[i], (*accumulators)[i]);
          }
        });
    if (added) added(first_ + static_cast<int>(i));
    after_layer();
  }
  // Others count on hearing of every layer.
  for (std::size_t i = frozen_layers_; added && i-- > 0;) added(first_ + static_cast<int>(i));
  return gradients;
}

Bundle Stage::backward_input(MicroBatch micro_batch, Version version, Bundle gradients) {
  const void* source = memory_of(gradients);
  return detached(
      run(in_flight(micro_batch), StageGraphs::PartKind::backward_input, std::move(gradients), nullptr,
          [&](Tensors inputs, InFlight& kept) -> Tensors {
            return run_backward(kept, version, std::move(inputs), nullptr, nullptr);
          }),
      source);
}

void Stage::backward_weight(MicroBatch micro_batch, Group group, const AfterLayer& added) {
  MicroBatchWork& work = in_flight(micro_batch);
  Accumulators& sums = accumulators(group);
  const auto part = [&](Tensors, InFlight& kept) -> Tensors {
    for (std::size_t i = layers_.size(); i-- > 0;) {
      named([&] { return work_text(*layers_[i], "backward of its weights"); },
            [&] {
              if (has_parameters_[i]) layers_[i]->backward_weight(kept.layers[i], sums[i]);
            });
      kept.layers[i].clear();
      if (added) added(first_ + static_cast<int>(i));
      after_layer();
    }
    return {};
  };
  if (added) {
    (void)part({}, work.kept);  // others hear of its layers one by one
  } else {
    (void)run(work, StageGraphs::PartKind::backward_weight, {}, &sums, part);
  }
  end(micro_batch);
}

Bundle Stage::backward(MicroBatch micro_batch, Version version, Group group, Bundle gradients,
                       const AfterLayer& added) {
  const void* source = memory_of(gradients);
  MicroBatchWork& work = in_flight(micro_batch);
  Accumulators& sums = accumulators(group);
  const auto part = [&](Tensors inputs, InFlight& kept) -> Tensors {
    return run_backward(kept, version, std::move(inputs), &sums, added);
  };
  Bundle results;
  if (added) {
    results = part(std::move(gradients), work.kept);
  } else {
    results = run(work, StageGraphs::PartKind::backward, std::move(gradients), &sums, part);
  }
  end(micro_batch);
  return detached(std::move(results), source);
}

Stage::Accumulators& Stage::accumulators(Group group) {
  const auto found = accumulators_.find(group);
  if (found != accumulators_.end()) return found->second;
  // Those of a group before, if there are any: their memory is there, and recordings know where.
  Accumulators fresh;
  if (spare_.empty()) {
    const StageParameters& newest = versions_.newest();
    for (std::size_t i = 0; i < newest.size(); ++i)
      fresh.emplace_back(newest[i], products_, layers_[i].get());
  } else {
    fresh = std::move(spare_.back());
    spare_.pop_back();
    for (GradientAccumulator& accumulator : fresh) accumulator.clear();
  }
  return accumulators_.emplace(group, std::move(fresh)).first->second;
}

const Tensors& Stage::gradients(Group group, int layer) {
  return accumulators(group)[local(layer)].gradients();
}

void Stage::summed(Group group) {
  for (GradientAccumulator& sums : accumulators(group)) sums.receive_all();
}

void Stage::summed(Group group, int layer, int parameter) {
  accumulators(group)[local(layer)].receive(static_cast<std::size_t>(parameter));
}

void Stage::step(Group group, Version from, std::size_t at, const ModelOptimizer& optimizer,
                 const UpdateMoment& moment) {
  const StageParameters& parameters = versions_.advance(from, at);
  Accumulators& sums = accumulators(group);
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    if (!has_parameters_[i]) continue;
    named([&] { return work_text(*layers_[i], "update"); },
          [&] {
            const Tensors& gradients = sums[i].gradients();
            // received(): a parameter without a contribution is not updated, as in PyTorch one without a
            // gradient.
            optimizer.step(first_ + static_cast<int>(i), moment, parameters[i], gradients, sums[i].received(),
                           optimizer_[i]);
          });
    versions_.publish(i);
    between_layers_();
  }
  skips_in_a_row_ = 0;
  end_group(group);
}

void Stage::skip_step(Group group, Version from, std::size_t at) {
  (void)versions_.advance(from, at);
  versions_.publish();
  ++skipped_steps_;
  ++skips_in_a_row_;
  end_group(group);
}

void Stage::end_group(Group group) {
  spare_.push_back(std::move(accumulators(group)));
  accumulators_.erase(group);
}

void Stage::forget_work() {
  while (!in_flight_.empty()) end(in_flight_.begin()->first);
  while (!accumulators_.empty()) end_group(accumulators_.begin()->first);
  skipped_steps_ = 0;
  skips_in_a_row_ = 0;
  of_a_pass_ = false;
}

void Stage::set_parameters(int layer, const Tensors& values) {
  const Tensors& parameters = versions_.newest()[local(layer)];
  for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i].copy_(values[i]);
  versions_.publish(local(layer));
}

}  // namespace stagecraft
