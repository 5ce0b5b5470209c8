// From programs to PyTorch's schedules. Both forms need an order of the whole, in which everything comes
// after what it needs: each rank takes one compute action a time step, as soon as it can.

#include "schedules/interchange/pytorch_csv.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace stagecraft {
namespace {

/// Idle cells included: a schedule of so many is no file to open.
constexpr std::int64_t kMaxCells = 100'000'000;

/// An action of the program and the time step it runs in.
struct Step {
  std::int32_t time;
  Rank rank;
  PytorchAction action;
};

[[noreturn]] void cannot_say(const std::string& what) {
  throw InputError(
      fmt::format("PyTorch's schedule files hold one training step, with one rank per stage: {}", what));
}

[[nodiscard]] bool moves_forward(PytorchOp op) { return op == PytorchOp::forward; }
[[nodiscard]] bool moves_backward(PytorchOp op) {
  return op == PytorchOp::backward || op == PytorchOp::backward_input;
}

class Timing {
 public:
  explicit Timing(const ScheduleProgram& program) : program_(program), placement_(program.placement) {
    check_header();
    for (std::size_t r = 0; r < program.ranks.size(); ++r) take(Rank{r});
    const std::int64_t cells = std::int64_t{placement_.stages()} * program.micro_batches();
    if (cells > count_) {
      throw RefusedError(
          fmt::format("{} forwards are needed, but the program has {} actions of the kind", cells, count_));
    }
    forward_.assign(to_size(cells), kNever);
    backward_ = forward_;
  }

  /// All compute actions by time, then rank.
  std::vector<Step> run() {
    steps_.reserve(to_size(count_));
    std::vector<Rank> ready;
    for (std::size_t r = 0; r < rows_.size(); ++r) ready.emplace_back(r);
    while (!ready.empty()) {
      const Rank rank = ready.back();
      ready.pop_back();
      advance(rank, ready);
    }
    if (static_cast<std::int64_t>(steps_.size()) < count_) {
      throw RefusedError(fmt::format(
          "the program stands still after {} of its {} forwards and backwards; `stagecraft check` "
          "says why",
          steps_.size(), count_));
    }
    std::ranges::sort(steps_, {}, [](const Step& step) { return std::pair{step.time, step.rank}; });
    return std::move(steps_);
  }

 private:
  static constexpr std::int32_t kNever = -1;

  void check_header() const {
    if (program_.kind != SegmentKind::train) cannot_say("validation is not one");
    if (program_.groups() != 1) cannot_say(fmt::format("this program makes {} steps", program_.groups()));
    for (int s = 0; s < placement_.stages(); ++s) {
      const int replicas = placement_.replicas(StageId{s});
      if (replicas > 1) cannot_say(fmt::format("stage {} has {} replicas", s, replicas));
    }
  }

  void take(Rank rank) {
    auto& row = rows_.emplace_back();
    for (const Action& action : program_.ranks[rank.index()]) {
      if (action.op == Op::recompute)
        cannot_say(
            "a recompute has no word there: in PyTorch that is the model's own affair; leave recomputation "
            "out");
      const auto op = pytorch_op(action.op);
      if (!op) continue;
      if (placement_.rank_of(action.stage, action.micro_batch) != rank) {
        cannot_say(
            fmt::format("rank {} computes stage {}, which it does not hold", rank.value, action.stage.value));
      }
      row.actions.push_back({.op = *op, .stage = action.stage, .micro_batch = action.micro_batch});
    }
    count_ += static_cast<std::int64_t>(row.actions.size());
  }

  [[nodiscard]] std::size_t at(StageId stage, MicroBatch mb) const {
    return stage.index() * to_size(program_.micro_batches()) + mb.index();
  }

  /// Runs what the rank can run, and wakes the ranks that may have waited for it.
  void advance(Rank rank, std::vector<Rank>& ready) {
    Row& row = rows_[rank.index()];
    for (; row.next < row.actions.size(); ++row.next) {
      const PytorchAction& action = row.actions[row.next];
      const auto after = needed(action);
      if (!after) return;
      row.time = std::max(row.time, *after) + 1;
      steps_.push_back({row.time, rank, action});
      if (moves_forward(action.op)) finish(forward_, action, +1, ready);
      if (moves_backward(action.op)) finish(backward_, action, -1, ready);
    }
  }

  void finish(std::vector<std::int32_t>& done, const PytorchAction& action, int direction,
              std::vector<Rank>& ready) {
    done[at(action.stage, action.micro_batch)] =
        rows_[placement_.ranks[action.stage.index()][0].index()].time;
    const StageId next{action.stage.value + direction};
    if (next.valid() && next.value < placement_.stages()) ready.push_back(placement_.ranks[next.index()][0]);
  }

  /// The time step after which the action can run; nothing while something that it needs has not run.
  [[nodiscard]] std::optional<std::int32_t> needed(const PytorchAction& action) const {
    std::int32_t latest = kNever;
    const auto need = [&](const std::vector<std::int32_t>& done, StageId stage) {
      const std::int32_t time = done[at(stage, action.micro_batch)];
      latest = std::max(latest, time);
      return time != kNever;
    };
    const StageId stage = action.stage;
    if (moves_forward(action.op)) {
      if (stage.value > 0 && !need(forward_, StageId{stage.value - 1})) return std::nullopt;
    } else if (moves_backward(action.op)) {
      const bool last = stage.value + 1 == placement_.stages();
      if (!need(forward_, stage) || (!last && !need(backward_, StageId{stage.value + 1})))
        return std::nullopt;
    } else if (!need(backward_, stage)) {
      return std::nullopt;
    }
    return latest;
  }

  struct Row {
    std::vector<PytorchAction> actions;
    std::size_t next = 0;
    std::int32_t time = kNever;
  };

  const ScheduleProgram& program_;
  const Placement& placement_;
  std::vector<Row> rows_;
  std::int64_t count_ = 0;
  std::vector<std::int32_t> forward_;  // per stage and micro-batch the time step it ran in
  std::vector<std::int32_t> backward_;
  std::vector<Step> steps_;
};

}  // namespace

PytorchSchedule pytorch_schedule(const ScheduleProgram& program) {
  PytorchSchedule schedule{.rows = std::vector<std::vector<PytorchAction>>(program.ranks.size())};
  std::int64_t cells = 0;
  for (const Step& step : Timing(program).run()) {
    auto& row = schedule.rows[step.rank.index()];
    cells += step.time + 1 - static_cast<std::int64_t>(row.size());
    if (cells > kMaxCells) {
      throw InputError(fmt::format("the schedule would have over {} cells, most of them idle", kMaxCells));
    }
    row.resize(to_size(step.time));
    row.push_back(step.action);
  }
  return schedule;
}

PytorchSchedule pytorch_schedule_with_communication(const ScheduleProgram& program, SendWaits waits) {
  PytorchSchedule schedule{.rows = std::vector<std::vector<PytorchAction>>(program.ranks.size())};
  std::vector<std::vector<PytorchAction>> at_the_end(program.ranks.size());
  const Placement& placement = program.placement;
  for (const Step& step : Timing(program).run()) {
    const PytorchAction& action = step.action;
    auto& row = schedule.rows[step.rank.index()];
    row.push_back(action);
    const bool forward = moves_forward(action.op);
    if (!forward && !moves_backward(action.op)) continue;
    /// The rank at the stage's other side in that direction; nothing where nothing is sent.
    const auto peer = [&](int direction) -> std::optional<Rank> {
      const StageId next{action.stage.value + direction};
      if (!next.valid() || next.value == placement.stages()) return std::nullopt;
      if (direction < 0 && !program.sends_gradient(action.stage)) return std::nullopt;
      const Rank its = placement.ranks[next.index()][0];
      return its == step.rank ? std::nullopt : std::optional(its);
    };
    const auto add = [&](std::vector<PytorchAction>& to, PytorchOp op, StageId stage) {
      to.push_back({.op = op, .stage = stage, .micro_batch = action.micro_batch});
    };
    if (!forward && waits == SendWaits::stated && peer(+1))
      add(row, PytorchOp::wait_send_forward, action.stage);
    const auto receiver = peer(forward ? +1 : -1);
    if (!receiver) continue;
    add(row, forward ? PytorchOp::send_forward : PytorchOp::send_backward, action.stage);
    add(schedule.rows[receiver->index()], forward ? PytorchOp::receive_forward : PytorchOp::receive_backward,
        StageId{action.stage.value + (forward ? 1 : -1)});
    if (!forward) add(at_the_end[step.rank.index()], PytorchOp::wait_send_backward, action.stage);
    if (forward && !program.has_backward(action.stage))  // no gradient comes back for it
      add(at_the_end[step.rank.index()], PytorchOp::wait_send_forward, action.stage);
  }
  if (waits == SendWaits::left_out) return schedule;
  for (std::size_t r = 0; r < at_the_end.size(); ++r) {
    schedule.rows[r].insert(schedule.rows[r].end(), at_the_end[r].begin(), at_the_end[r].end());
  }
  return schedule;
}

}  // namespace stagecraft
