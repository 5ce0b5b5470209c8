#include "engine/core/executor.h"

#include "base/error.h"
#include "models/tensors/libtorch_error.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>

namespace stagecraft {

// In what order things begin and end matters where ranks meet:
//
// - Receives are posted, and waited for, exactly where the list says. Its proof holds for that order and no
//   other: a wait that came earlier could be one of a circle of ranks that wait for each other.
// - Sums of gradients stand in no circle, because nothing waits for them between the backward that joins one
//   and the `reduce` or `tie` that ends it. So they may go on in the background of any other wait, and every
//   rank must leave its waits to that background (GradientSums::begin).
// - A tensor belongs to the slot or the boundary that holds it. A receive's slot is the transport's from
//   post_receive to wait_receive, then the stage's that reads it, until `release`. What is sent is the
//   transport's until wait_send; the stage has made it in memory of its own (Stage::forward), so no wait but
//   that one keeps the stage from going on.
// - A version of the weights may be written over, by the step that makes the next one, when no action behind
//   that step reads it: Versions knows that from the list, so nothing here frees any.

Executor::Executor(ExecutorContext context, const RankProgramPtr& program, const Segment& segment,
                   const std::function<void(const StepReport&)>& report, const std::function<bool()>& asked)
    : context_(context),
      run_(context.run),
      program_(*program),
      segment_(segment),
      report_(report),
      losses_(context.model, *program, segment, context.order, context.units, context.run.options.device) {
  STAGECRAFT_CHECK(context.stages.size() == program_.stages.size(), "the program has this rank's stages");
  STAGECRAFT_CHECK(!training() || program_.header.ties.size() == context.model.model.ties.size(),
                   "the program knows the model's tied weights");
  for (std::size_t k = 0; training() && k < context_.stages.size(); ++k) {
    STAGECRAFT_CHECK(context_.stages[k].frozen() != program_.header.has_backward(program_.stages[k].id),
                     "the program knows which of the model's weights are trained");
  }
  if (asked) early_end_.emplace(program_, run_.transport, asked);
  run_.boundaries.begin(program);
  for (std::size_t k = 0; k < context_.stages.size(); ++k) {
    context_.stages[k].begin(program_.stages[k].versions);
  }
  run_.sums.begin(program_, segment_.first_step);
}

Executor::~Executor() { run_.sums.end(); }

bool Executor::run() {
  Recorder& recorder = run_.recorder;
  const bool records = recorder.on() && training();  // a timeline is of training steps
  const bool on_host = run_.options.device.is_cpu();
  const std::vector<Action>& list = program_.list;
  try {
    run_.gate.begin(program_);
    for (at_ = 0; at_ < list.size(); ++at_) {
      const Action& action = list[at_];
      if (left_out()) continue;
      if (run_.options.before_action) run_.options.before_action();
      run_.transport.waits().pulse().beat(action);
      const bool works = on_host && (is_compute(action.op) || action.op == Op::step);
      const CoreShare::Begin work = works ? CoreShare::begin() : CoreShare::Begin{};
      Recorder::Mark begin = records ? recorder.mark() : Recorder::Mark{};
      carry_out(action);
      if (records) recorder.record(action, step_of(at_), std::move(begin), recorder.mark());
      if (works) run_.core_share.add(work);
    }
    const bool left = early_end_ && early_end_->finish();
    run_.boundaries.check_empty();
    if (!left && result_) run_.reports.add(result_->first, result_->second, report_);
    return !left;
  } catch (...) {
    fail_here(std::current_exception());
  }
}

void Executor::fail_here(const std::exception_ptr& error) const {
  const bool over = at_ >= program_.list.size();
  // Steps count from 1, as in the log.
  const std::string where = !training()
                                ? fmt::format("in the validation after step {}", segment_.first_step)
                                : fmt::format("at step {}", (over ? segment_.first_step : step_of(at_)) + 1);
  std::rethrow_exception(
      with_place(error, fmt::format("rank {} {}, action {} ({})", program_.rank.value, where, at_,
                                    over ? "the segment's end" : describe_action(program_.list[at_]))));
}

void Executor::carry_out(const Action& action) {
  switch (action.op) {
    case Op::load:
      return load(action);
    case Op::forward:
      return forward(action);
    case Op::backward_input:
      return backward_input(action);
    case Op::backward_weight:
      return backward_weight(action);
    case Op::backward:
      return backward(action);
    case Op::recompute:
      return stage().recompute(forward_task(action));
    case Op::reduce:
      return run_.sums.reduce(place(), action.group);
    case Op::tie:
      return run_.sums.tie(action.tie, action.group);
    case Op::agree_norm:
      return run_.gate.agree(action.group, step_of(at_));
    case Op::step:
      return step(action);
    case Op::report_loss:
      return report_loss(action);
    case Op::post_receive:
      return post_receive(action);
    case Op::wait_receive:
      return run_.boundaries.wait_receive(action.tag);
    case Op::start_send:
      return run_.boundaries.start_send(action.tag);
    case Op::wait_send:
      return run_.boundaries.wait_send(action.tag);
    case Op::release:
      return run_.boundaries.release(action.slot);
  }
  STAGECRAFT_CHECK(false, fmt::format("an action of kind {}", static_cast<int>(action.op)));
}

bool Executor::left_out() {
  if (!early_end_) return false;
  const MicroBatch micro_batch = facts().micro_batch;
  return micro_batch.valid() && !early_end_->goes_on(micro_batch);
}

std::size_t Executor::place() const {
  const std::int32_t stage = facts().stage;
  STAGECRAFT_CHECK(stage >= 0, fmt::format("rank {} does not hold stage {}", program_.rank.value,
                                           program_.list[at_].stage.value));
  return to_size(stage);
}

std::int64_t Executor::step_of(std::size_t at) const {
  const Group group = program_.of(at).group;
  return segment_.first_step + (training() && group.valid() ? group.value : 0);
}

ForwardTask Executor::forward_task(const Action& action) const {
  const MicroBatch mb = action.micro_batch;
  const Group group = program_.group_of[mb.index()];
  ForwardTask task;
  task.micro_batch = mb;
  task.version = action.version;
  task.mode = training() ? Mode::train : Mode::evaluate;
  task.key = {.seed = run_.options.seed,
              .layer = 0,
              .step = static_cast<std::uint64_t>(segment_.first_step + group.value),
              .micro_batch = static_cast<std::uint64_t>(mb.value - program_.groups[group.index()].first)};
  task.recomputed_later = facts().recomputed_later;
  return task;
}

void Executor::load(const Action& action) {
  const auto source = context_.data.find(action.stage);
  STAGECRAFT_CHECK(source != context_.data.end(), "the stage loads nothing");
  loaded_.push_back({facts().stage, action.micro_batch,
                     source->second->take(segment_.micro_batches[action.micro_batch.index()])});
}

Batch Executor::take_loaded(const Action& action) {
  if (!program_.stages[place()].loads) return {};
  const auto loaded = std::find_if(loaded_.begin(), loaded_.end(), [&](const Loaded& one) {
    return one.stage == facts().stage && one.micro_batch == action.micro_batch;
  });
  STAGECRAFT_CHECK(loaded != loaded_.end(), "the micro-batch was not loaded");
  Batch batch = std::move(loaded->batch);
  loaded_.erase(loaded);
  return batch;
}

void Executor::forward(const Action& action) {
  const MicroBatch mb = action.micro_batch;
  Stage& its = stage();
  ForwardTask task = forward_task(action);
  Batch batch = take_loaded(action);
  Bundle input = action.stage.value == 0 ? Bundle{std::move(batch.inputs)}
                                         : run_.boundaries.take_inputs(action.stage, mb, losses_.size_of(mb));
  task.fields = std::move(batch.fields);
  if (!last()) {
    run_.boundaries.put_outputs(action.stage, mb, its.forward(std::move(input), std::move(task)));
    return;
  }
  LossTask loss;
  loss.targets = std::move(batch.targets);
  if (context_.model.loss.reduction() == Reduction::mean) loss.share = losses_.share_of(mb);
  losses_.add(mb, its.forward_loss(std::move(input), std::move(task), std::move(loss)));
}

Bundle Executor::output_gradient(const Action& action) {
  if (last()) return {};  // it begins at its loss
  return run_.boundaries.take_output_gradients(action.stage, action.micro_batch,
                                               losses_.size_of(action.micro_batch));
}

void Executor::hand_on(const Action& action, const Bundle& input_gradient) {
  if (!program_.header.sends_gradient(action.stage)) return;
  run_.boundaries.put_input_gradients(action.stage, action.micro_batch, input_gradient);
}

void Executor::backward_input(const Action& action) {
  hand_on(action, stage().backward_input(action.micro_batch, action.version, output_gradient(action)));
}

void Executor::backward_weight(const Action& action) {
  const Group group = program_.group_of[action.micro_batch.index()];
  stage().backward_weight(action.micro_batch, group, after_layer());
  run_.sums.join_ties(at_, group);
}

void Executor::backward(const Action& action) {
  const Group group = program_.group_of[action.micro_batch.index()];
  hand_on(action, stage().backward(action.micro_batch, action.version, group, output_gradient(action),
                                   after_layer()));
  // Behind the hand-over: another rank waits for that one, and nobody yet for the sum.
  run_.sums.join_ties(at_, group);
}

AfterLayer Executor::after_layer() {
  const ActionFacts& its = facts();
  const Group group = program_.group_of[its.micro_batch.index()];
  switch (its.at_backward) {
    case AtBackward::nothing:
      return nullptr;
    case AtBackward::join_sum:
      return run_.sums.join(place(), group);
    case AtBackward::look_at_layers:
      // What a device computed is asked for later.
      if (!run_.options.device.is_cpu()) return nullptr;
      return run_.gate.look_at_layers(place(), group);
  }
  return nullptr;
}

void Executor::step(const Action& action) {
  const WorkerOptions& options = run_.options;
  const std::int64_t number = step_of(at_);
  Stage& stepped = stage();
  if (options.on_gradients) {
    for (int layer = stepped.first_layer(); layer < stepped.last_layer(); ++layer) {
      options.on_gradients(number, layer, stepped.gradients(action.group, layer));
    }
  }
  const double rate = rate_of(number);
  const bool skipped = run_.gate.skips(place(), action.group, number);
  // Between the two counts weights are neither those before nor those behind the step: Worker::whole_state.
  ++run_.updates.begun;
  if (skipped) {
    stepped.skip_step(action.group, action.version, at_);
  } else {
    const UpdateStaleness& late = program_.stages[place()].staleness[action.group.index()];
    stepped.step(action.group, action.version, at_, *options.optimizer, {rate, late.gradients, late.weights});
  }
  ++run_.updates.made;
  if (skipped) run_.gate.check_skips(stepped, number);
}

void Executor::report_loss(const Action& action) {
  const at::Tensor loss = losses_.report(action.group, run_.boundaries);
  if (!loss.defined() || !report_) return;
  if (early_end_) {  // whether all micro-batches are in it is known behind the list
    result_.emplace(report_of(action.group), loss);
  } else {
    run_.reports.add(report_of(action.group), loss, report_, run_.gate.outcome(action.group).late_norm);
  }
}

double Executor::rate_of(std::int64_t step) const {
  const WorkerOptions& options = run_.options;
  if (options.learning_rate) return options.learning_rate(step);
  return options.scheduler.rate({step, options.total_steps, options.optimizer->learning_rate()});
}

StepReport Executor::report_of(Group group) const {
  const GateOutcome& gate = run_.gate.outcome(group);
  const std::int64_t step = segment_.first_step + (training() ? group.value : 0);
  return {.step = step,
          .gradient_norm = gate.norm,
          .loss_scale = gate.loss_scale,
          .skipped = gate.skipped,
          .learning_rate = training() ? rate_of(step) : 0,
          .samples = losses_.samples(group),
          .tokens = losses_.tokens(group)};
}

void Executor::post_receive(const Action& action) {
  const bool of_group = action.tag.is_loss();
  run_.boundaries.post_receive(action.tag, action.slot,
                               of_group ? BatchSize{} : losses_.size_of(action.tag.micro_batch()));
}

}  // namespace stagecraft
