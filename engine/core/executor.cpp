#include "engine/core/executor.h"

#include "base/error.h"
#include "engine/core/clipping.h"
#include "engine/core/exchanged_sum.h"
#include "engine/core/finite.h"
#include "engine/core/overflow.h"
#include "models/tensors/libtorch_error.h"
#include "schedules/rules/reductions.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace stagecraft {
namespace {

Tensors gradients_of(Stage& stage, Group group) {
  Tensors all;
  for (int layer = stage.first_layer(); layer < stage.last_layer(); ++layer) {
    const Tensors& gradients = stage.gradients(group, layer);
    all.insert(all.end(), gradients.begin(), gradients.end());
  }
  return all;
}

/// Of parameters and buffers that a stage's replicas sum.
Bytes bytes_summed(const Stage& stage) {
  Bytes bytes;
  const auto count = [&](const Tensors& tensors) {
    for (const at::Tensor& tensor : tensors) bytes += Bytes{static_cast<std::int64_t>(tensor.nbytes())};
  };
  for (int layer = stage.first_layer(); layer < stage.last_layer(); ++layer) {
    count(stage.parameters(layer));
    count(stage.buffers(layer, OverReplicas::mean));
    count(stage.buffers(layer, OverReplicas::first));
  }
  return bytes;
}

}  // namespace

Executor::Executor(ExecutorContext context, const LoweredProgram& program, const Segment& segment,
                   const std::function<void(const StepReport&)>& report, const std::function<bool()>& asked)
    : context_(context),
      program_(program),
      segment_(segment),
      report_(report),
      list_(program.ranks.at(me().index())),
      group_of_(program.groups_by_micro_batch()) {
  STAGECRAFT_CHECK(program.kind == segment.kind && program.group_sizes == segment.group_sizes &&
                       group_of_.size() == segment.micro_batches.size(),
                   "the program was made for another segment");
  int first = 0;
  for (const int size : program.group_sizes) {
    GroupState group;
    group.first_micro_batch = first;
    group.size = size;
    for (int k = 0; k < size; ++k) {
      const BatchSize its = size_of(MicroBatch{first + k});
      group.samples += its.samples;
      group.tokens += context_.model.sample.tokens(its);
    }
    first += size;
    groups_.push_back(std::move(group));
  }
  STAGECRAFT_CHECK(!training() || program.ties.size() == context_.model.ties.size(),
                   "the program knows the model's tied weights");
  bool reduces = false;
  for (std::size_t i = 0; i < list_.size(); ++i) {
    const Action& action = list_[i];
    if (action.op == Op::recompute) recomputed_.emplace(action.stage, action.micro_batch);
    if (action.op == Op::agree_norm) agrees_ = true;
    if (action.op == Op::reduce || action.op == Op::tie) reduces = true;
    // What a device computed is asked for later, and a sum over replicas is looked at when it is complete.
    const bool looks = action.op == Op::step && !agrees_ && context_.options.device.is_cpu() &&
                       program.placement.replicas(action.stage) == 1 && !has_ties(action.stage);
    if (action.op != Op::reduce && action.op != Op::tie && !looks) continue;
    const std::int32_t at = last_backward_into(program, list_, static_cast<std::int32_t>(i));
    if (at < 0) continue;
    if (action.op == Op::tie) {
      tie_joins_.emplace(static_cast<std::size_t>(at), action.tie);
    } else {
      (looks ? looks_ : joins_).insert(static_cast<std::size_t>(at));
    }
  }
  if (reduces) {
    context_.transport.set_background([this] {
      for (auto& [stage, sum] : sums_) sum->poll();
      for (auto& [tie, sum] : tie_sums_) sum->poll();
    });
  }
  if (asked) early_end_.emplace(program, context_.transport, asked);
  context_.boundaries.begin(program);
  for (Stage& stage : context_.stages) {
    stage.begin(list_);
    if (training()) staleness_.emplace(stage.id(), staleness_of_updates(program, stage.id()));
    if (context_.loss_scale != nullptr) stage.scale_loss(context_.loss_scale->value());
  }
  STAGECRAFT_CHECK(context_.loss_scale == nullptr || !training() || agrees_,
                   "a scaled loss needs an agreement on the norm");
}

Executor::~Executor() { context_.transport.set_background(nullptr); }

const std::array<Executor::Handler, 16>& Executor::handlers() {
  static const std::array<Handler, 16> table = [] {
    std::array<Handler, 16> by_op{};
    const auto set = [&](Op op, Handler handler) { by_op[static_cast<std::size_t>(op)] = handler; };
    set(Op::load, &Executor::load);
    set(Op::forward, &Executor::forward);
    set(Op::backward_input, &Executor::backward_input);
    set(Op::backward_weight, &Executor::backward_weight);
    set(Op::backward, &Executor::backward);
    set(Op::recompute, &Executor::recompute);
    set(Op::reduce, &Executor::reduce);
    set(Op::tie, &Executor::tie);
    set(Op::agree_norm, &Executor::agree_norm);
    set(Op::step, &Executor::step);
    set(Op::report_loss, &Executor::report_loss);
    set(Op::post_receive, &Executor::post_receive);
    set(Op::wait_receive, &Executor::wait_receive);
    set(Op::start_send, &Executor::start_send);
    set(Op::wait_send, &Executor::wait_send);
    set(Op::release, &Executor::release);
    return by_op;
  }();
  return table;
}

bool Executor::run() {
  Recorder& recorder = context_.recorder;
  try {
    if (!agrees_) context_.late_norms.hear_all();  // before reports of this segment
    for (at_ = 0; at_ < list_.size(); ++at_) {
      const Action& action = list_[at_];
      if (left_out(action)) continue;
      context_.transport.waits().pulse().beat(action);
      const Handler handler = handlers()[static_cast<std::size_t>(action.op)];
      if (!recorder.on() || !training()) {  // a timeline is of training steps
        (this->*handler)(action);
        continue;
      }
      Recorder::Mark begin = recorder.mark();
      (this->*handler)(action);
      recorder.record(action, step_of(action), std::move(begin), recorder.mark());
    }
    const bool left = early_end_ && early_end_->finish();
    context_.boundaries.check_empty();
    if (!left && result_) context_.late_reports.add(result_->first, result_->second, report_);
    return !left;
  } catch (...) {
    const bool over = at_ >= list_.size();
    // Steps count from 1, as in the log.
    const std::string where =
        !training() ? fmt::format("in the validation after step {}", segment_.first_step)
                    : fmt::format("at step {}", (over ? segment_.first_step : step_of(list_[at_])) + 1);
    std::rethrow_exception(with_place(std::current_exception(),
                                      fmt::format("rank {} {}, action {} ({})", me().value, where, at_,
                                                  over ? "the segment's end" : describe_action(list_[at_]))));
  }
}

bool Executor::left_out(const Action& action) {
  if (!early_end_) return false;
  const MicroBatch micro_batch = micro_batch_of(action);
  return micro_batch.valid() && !early_end_->goes_on(micro_batch);
}

Stage& Executor::stage(StageId id) {
  for (Stage& stage : context_.stages) {
    if (stage.id() == id) return stage;
  }
  STAGECRAFT_CHECK(false, fmt::format("rank {} does not hold stage {}", me().value, id.value));
  return context_.stages.front();
}

bool Executor::last(StageId id) const { return id.value + 1 == program_.placement.stages(); }

Executor::GroupState& Executor::group_of(MicroBatch micro_batch) {
  return groups_[group_of_[micro_batch.index()].index()];
}

std::int64_t Executor::step_of(const Action& action) const {
  if (!training()) return segment_.first_step;
  Group group = action.group;
  if (is_transfer(action.op) && action.tag.is_loss()) {
    group = action.tag.group();
  } else if (!group.valid()) {
    const MicroBatch micro_batch = is_transfer(action.op) ? action.tag.micro_batch() : action.micro_batch;
    if (micro_batch.valid()) group = group_of_[micro_batch.index()];
  }
  // A release belongs to whatever stands before it.
  if (!group.valid()) {
    const std::size_t here = static_cast<std::size_t>(&action - list_.data());
    return here > 0 ? step_of(list_[here - 1]) : segment_.first_step;
  }
  return segment_.first_step + group.value;
}

ForwardTask Executor::forward_task(const Action& action) {
  const MicroBatch mb = action.micro_batch;
  ForwardTask task;
  task.micro_batch = mb;
  task.version = action.version;
  task.mode = training() ? Mode::train : Mode::evaluate;
  task.key = {.seed = context_.options.seed,
              .layer = 0,
              .step = static_cast<std::uint64_t>(segment_.first_step + group_of_[mb.index()].value),
              .micro_batch = static_cast<std::uint64_t>(mb.value - group_of(mb).first_micro_batch)};
  task.recomputed_later = recomputed_.contains({action.stage, mb});
  return task;
}

Batch Executor::take_loaded(const Action& action) {
  if (!program_.loads(action.stage)) return {};
  auto loaded = loaded_.extract({action.stage, action.micro_batch});
  STAGECRAFT_CHECK(!loaded.empty(), "the micro-batch was not loaded");
  return std::move(loaded.mapped());
}

double Executor::share_of(MicroBatch micro_batch) {
  GroupState& group = group_of(micro_batch);
  const auto share = [](std::int64_t part, std::int64_t whole) {
    return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
  };
  const auto of = [&](int mb) -> const MicroBatchRange& {
    return segment_.micro_batches[static_cast<std::size_t>(mb)];
  };
  // Units per sample are the same for all samples, so they cancel out of the share.
  if (context_.units == nullptr) return share(of(micro_batch.value).count, group.samples);
  if (group.units.empty()) {
    for (int k = 0; k < group.size; ++k)
      group.units.push_back(context_.units->of(of(group.first_micro_batch + k)));
  }
  return share(group.units[micro_batch.index() - static_cast<std::size_t>(group.first_micro_batch)],
               std::accumulate(group.units.begin(), group.units.end(), std::int64_t{0}));
}

void Executor::load(const Action& action) {
  const auto source = context_.data.find(action.stage);
  STAGECRAFT_CHECK(source != context_.data.end(), "the stage loads nothing");
  loaded_.emplace(std::pair{action.stage, action.micro_batch},
                  source->second->take(segment_.micro_batches[action.micro_batch.index()]));
}

void Executor::forward(const Action& action) {
  const MicroBatch mb = action.micro_batch;
  ForwardTask task = forward_task(action);
  Batch batch = take_loaded(action);
  Bundle input = action.stage.value == 0 ? Bundle{std::move(batch.inputs)}
                                         : context_.boundaries.take_inputs(action.stage, mb, size_of(mb));
  task.fields = std::move(batch.fields);
  if (!last(action.stage)) {
    context_.boundaries.put_outputs(action.stage, mb,
                                    stage(action.stage).forward(std::move(input), std::move(task)));
    return;
  }
  GroupState& group = group_of(mb);
  LossTask loss;
  loss.targets = std::move(batch.targets);
  if (context_.loss.reduction() == Reduction::mean) loss.share = share_of(mb);
  const LossValue value =
      stage(action.stage).forward_loss(std::move(input), std::move(task), std::move(loss));
  if (!group.loss) group.loss.emplace(context_.options.device);
  group.loss->add(value);
}

void Executor::recompute(const Action& action) { stage(action.stage).recompute(forward_task(action)); }

BatchSize Executor::size_of(MicroBatch micro_batch) const {
  return context_.order.size(segment_.micro_batches[micro_batch.index()]);
}

Bundle Executor::output_gradient(const Action& action) {
  if (last(action.stage)) return {};
  return context_.boundaries.take_output_gradients(action.stage, action.micro_batch,
                                                   size_of(action.micro_batch));
}

void Executor::hand_on(const Action& action, const Bundle& input_gradient) {
  if (action.stage.value == 0) return;
  context_.boundaries.put_input_gradients(action.stage, action.micro_batch, input_gradient);
}

void Executor::backward_input(const Action& action) {
  hand_on(action,
          stage(action.stage).backward_input(action.micro_batch, action.version, output_gradient(action)));
}

void Executor::backward_weight(const Action& action) {
  const Group group = group_of_[action.micro_batch.index()];
  stage(action.stage).backward_weight(action.micro_batch, group, after_layer_at(action));
  join_ties(group);
}

void Executor::backward(const Action& action) {
  const Group group = group_of_[action.micro_batch.index()];
  hand_on(action, stage(action.stage)
                      .backward(action.micro_batch, action.version, group, output_gradient(action),
                                after_layer_at(action)));
  join_ties(group);
}

AfterLayer Executor::after_layer_at(const Action& action) {
  const Group group = group_of_[action.micro_batch.index()];
  if (joins_.contains(at_)) return join_sum(action.stage, group);
  if (looks_.contains(at_)) return look_at_layers(action.stage, group);
  return nullptr;
}

AfterLayer Executor::look_at_layers(StageId id, Group group) {
  Stage& looked_at = stage(id);
  std::optional<std::size_t>& found = not_finite_[id] = std::nullopt;
  return [&looked_at, &found, group](int layer) {
    if (found) return;
    found = last_not_finite(looked_at.gradients(group, layer));
    if (!found) return;
    for (int before = looked_at.first_layer(); before < layer; ++before) {
      *found += looked_at.gradients(group, before).size();
    }
  };
}

std::unique_ptr<ReplicaSum> Executor::make_sum(const std::vector<Rank>& copies, const Tag& tag,
                                               Bytes staging) {
  Transport& transport = context_.transport;
  if (std::unique_ptr<ReplicaSum> its_own = transport.make_sum(copies, tag)) return its_own;
  return std::make_unique<ExchangedSum>(transport, copies, tag, staging, context_.options.device);
}

AfterLayer Executor::join_sum(StageId id, Group group) {
  Stage& summed = stage(id);
  STAGECRAFT_CHECK(!sums_.contains(id), "a stage's sums are finished one after another");
  const std::vector<Rank>& replicas = program_.placement.ranks[id.index()];
  const Bytes staging = reduce_staging(bytes_summed(summed), static_cast<int>(replicas.size()));
  const auto entry = sums_.emplace(id, make_sum(replicas, Tag::reduction(id, group), staging)).first;
  return [this, &summed, &sum = *entry->second, group](int layer) {
    for (const at::Tensor& gradient : reduced_gradients(summed, group, layer)) sum.add(gradient);
    if (layer == summed.first_layer()) sum.flush();
  };
}

void Executor::reduce(const Action& action) {
  Stage& reduced = stage(action.stage);
  if (!sums_.contains(action.stage)) {  // the replica has no micro-batch in the group: it adds zeros
    const AfterLayer hand_in = join_sum(action.stage, action.group);
    for (int layer = reduced.last_layer(); layer-- > reduced.first_layer();) hand_in(layer);
  }
  const auto sum = sums_.find(action.stage);
  const std::vector<Rank>& replicas = program_.placement.ranks[action.stage.index()];
  Tensors averaged;
  for (int layer = reduced.first_layer(); layer < reduced.last_layer(); ++layer) {
    for (const at::Tensor& buffer : reduced.buffers(layer, OverReplicas::mean)) {
      averaged.push_back(buffer);
      sum->second->add(buffer);
    }
    for (const at::Tensor& buffer : reduced.buffers(layer, OverReplicas::first)) {
      if (me() != replicas.front()) buffer.zero_();  // plus zeros, bytes of any type are the first replica's
      sum->second->add(buffer.view({-1}).view(at::kByte));
    }
  }
  sum->second->finish();
  sums_.erase(sum);
  reduced.summed(action.group);
  for (const at::Tensor& buffer : averaged) buffer.div_(static_cast<double>(replicas.size()));
}

bool Executor::has_ties(StageId id) const {
  for (std::size_t k = 0; k < program_.ties.size(); ++k) {
    if (program_.holds(id, TieId{k})) return true;
  }
  return false;
}

Tensors Executor::reduced_gradients(Stage& stage, Group group, int layer) {
  Tensors gradients = stage.gradients(group, layer);
  for (const Tie& tie : context_.model.ties) {
    for (const Tie::Holder& holder : tie.holders) {
      if (holder.layer == layer) gradients[static_cast<std::size_t>(holder.parameter)] = at::Tensor();
    }
  }
  std::erase_if(gradients, [](const at::Tensor& gradient) { return !gradient.defined(); });
  return gradients;
}

void Executor::join_ties(Group group) {
  for (auto [join, end] = tie_joins_.equal_range(at_); join != end; ++join) join_tie(join->second, group);
}

void Executor::join_tie(TieId tie, Group group) {
  const std::vector<Tie::Holder>& holders = context_.model.ties[tie.index()].holders;
  Tensors own;  // as copies_of has them: the last layer first
  for (std::size_t i = holders.size(); i-- > 0;) {
    for (Stage& stage : context_.stages) {
      const auto [layer, parameter] = holders[i];
      if (stage.first_layer() <= layer && layer < stage.last_layer())
        own.push_back(stage.gradients(group, layer)[static_cast<std::size_t>(parameter)]);
    }
  }
  const std::vector<Rank> copies = copies_of(program_.placement, program_.ties[tie.index()]);
  const Bytes staging = tie_staging(Bytes{static_cast<std::int64_t>(own.front().nbytes())}, copies, me());
  std::unique_ptr<ReplicaSum> sum = make_sum(copies, Tag::tied(tie, group), staging);
  sum->add(own);
  sum->poll();
  STAGECRAFT_CHECK(tie_sums_.emplace(tie, std::move(sum)).second, "a weight's sums follow each other");
}

void Executor::tie(const Action& action) {
  // Without micro-batches in the group this rank adds zeros.
  if (!tie_sums_.contains(action.tie)) join_tie(action.tie, action.group);
  tie_sums_.at(action.tie)->finish();
  tie_sums_.erase(action.tie);
  for (const auto& [layer, parameter] : context_.model.ties[action.tie.index()].holders) {
    for (Stage& stage : context_.stages) {
      if (stage.first_layer() <= layer && layer < stage.last_layer())
        stage.summed(action.group, layer, parameter);
    }
  }
}

void Executor::step(const Action& action) {
  const WorkerOptions& options = context_.options;
  const std::int64_t number = step_of(action);
  Stage& stepped = stage(action.stage);
  if (options.on_gradients) {
    for (int layer = stepped.first_layer(); layer < stepped.last_layer(); ++layer) {
      options.on_gradients(number, layer, stepped.gradients(action.group, layer));
    }
  }
  const double rate =
      options.scheduler.rate({number, options.total_steps, options.optimizer->learning_rate()});
  groups_[action.group.index()].learning_rate = rate;
  const bool skipped = skips(action);
  ++context_.updates.begun;
  if (!skipped) {
    const UpdateStaleness& late = staleness_.at(action.stage)[action.group.index()];
    stepped.step(action.group, action.version, at_, *options.optimizer, {rate, late.gradients, late.weights});
    ++context_.updates.made;
    return;
  }
  stepped.skip_step(action.group, action.version, at_);
  ++context_.updates.made;
  // A loss scale has a rule of its own.
  if (context_.loss_scale == nullptr && stepped.skips_in_a_row() >= kMostSkipsInARow) {
    throw too_many_skips(number, action.stage);
  }
}

bool Executor::skips(const Action& action) {
  GroupState& group = groups_[action.group.index()];
  if (group.agreed) return group.skipped;
  const Tensors gradients = gradients_of(stage(action.stage), action.group);
  const auto before = context_.parameter_counts.begin();
  const auto error = [&model = context_.model, &layers = context_.stage_layers, step = step_of(action),
                      first = std::accumulate(before, before + action.stage.value, 0)](std::size_t at,
                                                                                       double value) {
    return gradient_not_finite(model, layers, step, static_cast<std::size_t>(first) + at, value);
  };
  const bool stops = context_.options.on_overflow == OnOverflow::stop;
  if (stops && !context_.options.device.is_cpu()) {
    // The device may be behind: until it has answered, the run goes on with weights that nothing saves.
    context_.deferred_checks.add(gradients,
                                 [error](std::size_t at, double value) { throw error(at, value); });
    return false;
  }
  const auto looked = not_finite_.find(action.stage);
  const auto found = looked != not_finite_.end()
                         ? looked->second
                         : last_not_finite(gradients, [this] { context_.transport.progress(); });
  if (!found) return false;
  if (stops)
    throw error(*found,
                sums_of_squares({gradients[*found]}, [this] { context_.transport.progress(); }).front());
  if (action.stage.value == 0) group.skipped = true;
  return true;
}

bool Executor::has_no_unit(const GroupState& group) const {
  return !training() && group.loss && !group.units.empty() &&
         std::all_of(group.units.begin(), group.units.end(), [](std::int64_t units) { return units == 0; });
}

void Executor::report_loss(const Action& action) {
  GroupState& group = groups_[action.group.index()];
  const StageId last_stage{program_.placement.stages() - 1};
  const std::vector<Rank>& reporters = program_.placement.ranks[last_stage.index()];
  const bool gathers = me() == program_.placement.ranks[0].front();
  LossSum all(context_.options.device);
  for (std::size_t replica = 0; replica < reporters.size(); ++replica) {
    const Tag tag = Tag::loss(last_stage, action.group, static_cast<int>(replica));
    const bool mine = reporters[replica] == me();
    if (mine && has_no_unit(group)) group.loss->spoil();
    if (mine && !gathers) {
      if (!group.loss) group.loss.emplace(context_.options.device);  // left before its first micro-batch
      return context_.boundaries.put(tag, group.loss->values());
    }
    // A replica may have no micro-batch of the group.
    if (mine && group.loss) all.add(group.loss->values());
    if (!mine && context_.boundaries.has(tag)) all.add(context_.boundaries.take(tag));
  }
  group.loss.reset();
  if (!report_) return;
  const StepReport report{.step = segment_.first_step + (training() ? action.group.value : 0),
                          .gradient_norm = group.norm,
                          .loss_scale = group.loss_scale,
                          .skipped = group.skipped,
                          .learning_rate = group.learning_rate,
                          .samples = group.samples,
                          .tokens = group.tokens};
  if (early_end_) {  // whether all micro-batches are in it is known behind the list
    result_.emplace(report, all.values());
  } else {
    context_.late_reports.add(report, all.values(), report_, group.late_norm);
  }
}

void Executor::post_receive(const Action& action) {
  const bool of_group = action.tag.is_loss();
  context_.boundaries.post_receive(action.tag, action.slot,
                                   of_group ? BatchSize{} : size_of(action.tag.micro_batch()));
}

}  // namespace stagecraft
