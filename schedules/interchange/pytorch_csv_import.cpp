// From PyTorch's schedules to programs. What their runtime does with a schedule is in
// torch/distributed/pipelining/schedules.py, _PipelineScheduleRuntime._step_microbatches.

#include "schedules/interchange/pytorch_csv.h"
#include "schedules/program/step_program.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace stagecraft {
namespace {

constexpr Group kGroup{std::int32_t{0}};

/// One step, a rank per stage, as many micro-batches as the highest one says. Stages before the first one with a
/// backward are frozen.
ProgramHeader header_of(const PytorchSchedule& schedule) {
  ProgramHeader header{.schedule = "custom"};
  int micro_batches = 0;
  StageId first_backward{};
  for (std::size_t r = 0; r < schedule.rows.size(); ++r) {
    for (const PytorchAction& action : schedule.rows[r]) {
      const std::optional<Op> op = compute_op(action.op);
      if (!op) continue;
      if (*op != Op::forward && (!first_backward.valid() || action.stage < first_backward))
        first_backward = action.stage;
      auto& ranks = header.placement.ranks;
      if (ranks.size() <= action.stage.index()) ranks.resize(action.stage.index() + 1);
      ranks[action.stage.index()] = {Rank{r}};
      micro_batches = std::max(micro_batches, action.micro_batch.value + 1);
    }
  }
  header.group_sizes = {micro_batches};
  if (first_backward.valid()) header.gradient_from = first_backward;
  validate_header(header);
  return header;
}

/// What both kinds of program say about a compute action, and the load before it.
class ComputeCells {
 public:
  explicit ComputeCells(const ProgramHeader& header)
      : last_(header.placement.stages() - 1), loaded_(to_size(header.micro_batches()) * 2) {}

  /// The load that stands before `forward`: on the first and the last stage, once per micro-batch, however
  /// often the schedule has its forward.
  std::optional<Action> load_before(const Action& action) {
    if (action.op != Op::forward || (action.stage != StageId{0} && action.stage != last_))
      return std::nullopt;
    auto loaded = loaded_[action.micro_batch.index() * 2 + (action.stage == last_ ? 1 : 0)];
    if (loaded) return std::nullopt;
    loaded = true;
    return Action{.op = Op::load, .stage = action.stage, .micro_batch = action.micro_batch, .group = kGroup};
  }

  /// Nothing for what is no compute action.
  static std::optional<Action> action_of(const PytorchAction& written) {
    const auto op = compute_op(written.op);
    if (!op) return std::nullopt;
    return Action{.op = *op,
                  .stage = written.stage,
                  .micro_batch = written.micro_batch,
                  .version = Version{0},
                  .group = kGroup};
  }

 private:
  StageId last_;
  std::vector<bool> loaded_;  // per micro-batch: on the first stage, on the last
};

[[nodiscard]] Rank rank_of(const ProgramHeader& header, StageId stage) {
  return header.placement.ranks[stage.index()].front();
}

/// Whether this rank tells stage 0's of the loss; where that is itself, it just prints.
[[nodiscard]] bool sends_loss(const ProgramHeader& header, Rank rank) {
  return rank == rank_of(header, StageId{header.placement.stages() - 1}) &&
         rank != rank_of(header, StageId{0});
}

/// One row as PyTorch's runtime carries it out.
class RowLowering {
 public:
  /// `waits_stated`: whether the schedule says where it waits for its sends.
  RowLowering(const ProgramHeader& header, Rank rank, ComputeCells& compute, bool waits_stated)
      : header_(header),
        rank_(rank),
        compute_(compute),
        waits_stated_(waits_stated),
        last_{header.placement.stages() - 1} {}

  void run(const std::vector<PytorchAction>& row, const std::vector<Action>& flush) {
    const Tag loss = Tag::loss(last_, kGroup, 0);
    const bool prints = rank_ == rank_of(header_, StageId{0});
    const bool gathers = prints && rank_ != rank_of(header_, last_);
    for (const PytorchAction& action : row) lower(action);
    if (waits_stated_) sent_.clear();
    if (gathers) post(loss);
    if (sends_loss(header_, rank_)) {
      actions.push_back({.op = Op::report_loss, .stage = last_, .group = kGroup});
      send(loss);
    }
    for (auto tag = sent_.rbegin(); tag != sent_.rend(); ++tag) wait_for(*tag);
    for (const Slot slot : waited_) actions.push_back({.op = Op::release, .slot = slot});
    for (const Action& action : flush) {
      const bool needs_loss = gathers && action.op == Op::report_loss;
      const Slot slot = needs_loss ? posted_.at(loss).slot : Slot{};
      if (needs_loss) actions.push_back({.op = Op::wait_receive, .tag = loss, .slot = slot});
      actions.push_back(action);
      if (needs_loss) actions.push_back({.op = Op::release, .slot = slot});
    }
  }

  std::vector<Action> actions;
  std::vector<SlotInfo> slots;

 private:
  void lower(const PytorchAction& written) {
    const auto neighbour = [&](int step) { return StageId{written.stage.value + step}; };
    switch (written.op) {
      case PytorchOp::receive_forward:
        return post(Tag::activation(neighbour(-1), written.micro_batch));
      case PytorchOp::receive_backward:
        return post(Tag::gradient(neighbour(+1), written.micro_batch));
      case PytorchOp::send_forward:
        return send(Tag::activation(written.stage, written.micro_batch));
      case PytorchOp::send_backward:
        return send(Tag::gradient(written.stage, written.micro_batch));
      case PytorchOp::wait_send_forward:
        return wait_for(Tag::activation(written.stage, written.micro_batch));
      case PytorchOp::wait_send_backward:
        return wait_for(Tag::gradient(written.stage, written.micro_batch));
      default:
        break;
    }
    auto action = ComputeCells::action_of(written);
    if (!action) return;  // FSDP's actions and idle steps move nothing between stages
    if (const auto load = compute_.load_before(*action)) actions.push_back(*load);
    const bool forward = action->op == Op::forward;
    const StageId from = neighbour(forward ? -1 : +1);
    if (from.valid() && from <= last_ && rank_of(header_, from) != rank_) {
      action->slot = arrived(forward ? Tag::activation(from, written.micro_batch)
                                     : Tag::gradient(from, written.micro_batch));
    }
    actions.push_back(*action);
  }

  void post(const Tag& tag) {
    const Slot slot{slots.size()};
    slots.push_back({tag.payload, tag.from, tag.to, tag.index});
    posted_[tag] = {slot, false};
    actions.push_back({.op = Op::post_receive, .tag = tag, .slot = slot});
  }

  /// The buffer of a tensor that is read now, waited for where it was not before; none when it was not even
  /// asked for, as the checker will say.
  Slot arrived(const Tag& tag) {
    const auto posted = posted_.find(tag);
    if (posted == posted_.end()) return {};
    auto& [slot, waited] = posted->second;
    if (!std::exchange(waited, true)) {
      actions.push_back({.op = Op::wait_receive, .tag = tag, .slot = slot});
      waited_.push_back(slot);
    }
    return slot;
  }

  void send(const Tag& tag) {
    actions.push_back({.op = Op::start_send, .tag = tag});
    sent_.push_back(tag);
  }

  void wait_for(const Tag& tag) { actions.push_back({.op = Op::wait_send, .tag = tag}); }

  const ProgramHeader& header_;
  Rank rank_;
  ComputeCells& compute_;
  bool waits_stated_;
  StageId last_;
  struct Posted {
    Slot slot;
    bool waited;
  };
  std::unordered_map<Tag, Posted> posted_;  // the last receive of each
  std::vector<Slot> waited_;
  std::vector<Tag> sent_;  // and waited for at the end
};

ScheduleProgram flush_of(const ProgramHeader& header) {
  ScheduleProgram flush{header, std::vector<std::vector<Action>>(to_size(header.placement.world()))};
  append_flush(flush, /*clip=*/false);
  return flush;
}

/// Most receives of one (payload, from, to) in any row: each has a buffer of its own.
int most_slots(const std::vector<std::vector<SlotInfo>>& slots) {
  int most = 0;
  for (const auto& of_rank : slots) {
    std::unordered_map<Tag, int> counts;
    for (const SlotInfo& slot : of_rank) {
      if (slot.payload == Payload::loss) continue;
      most = std::max(most, ++counts[Tag{.payload = slot.payload, .from = slot.from, .to = slot.to}]);
    }
  }
  return most;
}

}  // namespace

ScheduleProgram schedule_program(const PytorchSchedule& schedule) {
  const ProgramHeader header = header_of(schedule);
  ScheduleProgram program{header, {}};
  ComputeCells compute(header);
  const StageId last{header.placement.stages() - 1};
  for (std::size_t r = 0; r < schedule.rows.size(); ++r) {
    auto& list = program.ranks.emplace_back();
    std::size_t after_last_forward = 0;
    for (const PytorchAction& written : schedule.rows[r]) {
      const auto action = ComputeCells::action_of(written);
      if (!action) continue;
      if (const auto load = compute.load_before(*action)) list.push_back(*load);
      list.push_back(*action);
      if (action->op == Op::forward && action->stage == last) after_last_forward = list.size();
    }
    if (sends_loss(header, Rank{r})) {
      list.insert(list.begin() + static_cast<std::ptrdiff_t>(after_last_forward),
                  {.op = Op::report_loss, .stage = last, .group = kGroup});
    }
  }
  append_flush(program, /*clip=*/false);
  return program;
}

LoweredProgram lowered_program(const PytorchSchedule& schedule) {
  const ProgramHeader header = header_of(schedule);
  const ScheduleProgram flush = flush_of(header);
  LoweredProgram lowered{header, {}, {}, 0};
  ComputeCells compute(header);
  for (std::size_t r = 0; r < schedule.rows.size(); ++r) {
    RowLowering row(header, Rank{r}, compute, schedule.states_waits());
    row.run(schedule.rows[r], flush.ranks[r]);
    lowered.ranks.push_back(std::move(row.actions));
    lowered.slots.push_back(std::move(row.slots));
  }
  lowered.slots_per_channel = most_slots(lowered.slots);
  return lowered;
}

}  // namespace stagecraft
