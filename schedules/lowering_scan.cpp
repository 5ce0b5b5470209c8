#include "schedules/lowering_scan.h"

#include <algorithm>

namespace stagecraft {
namespace {

constexpr std::int32_t kNone = -1;

bool is_backward(Op op) {
  return op == Op::backward || op == Op::backward_input || op == Op::backward_weight;
}

class Scanner {
 public:
  Scanner(const ScheduleProgram& program, Rank rank)
      : program_(program),
        placement_(program.placement),
        rank_(rank),
        micro_batches_(static_cast<std::size_t>(program.micro_batches())),
        last_stage_(placement_.stages() - 1),
        local_(placement_.ranks.size(), kNone) {}

  RankScan run() {
    const auto& list = program_.ranks[rank_.index()];
    const auto& reporters = placement_.ranks.back();
    const auto mine = std::find(reporters.begin(), reporters.end(), rank_);
    scan_.last_stage_ = StageId{last_stage_};
    if (mine != reporters.end()) scan_.reporter_ = static_cast<std::int32_t>(mine - reporters.begin());
    scan_.begin_.reserve(list.size() + 1);
    scan_.sends_.reserve(list.size());
    scan_.reads_.reserve(list.size());
    scan_.receives.reserve(list.size());
    for (std::size_t i = 0; i < list.size(); ++i) {
      scan_.begin_.push_back(static_cast<std::uint32_t>(scan_.reads_.size()));
      const bool known = is_within(list[i]);
      if (known) read(list[i], static_cast<std::int32_t>(i));
      scan_.sends_.push_back(known && sends(list[i]));
    }
    scan_.begin_.push_back(static_cast<std::uint32_t>(scan_.reads_.size()));
    count_held(list.size());
    return std::move(scan_);
  }

 private:
  [[nodiscard]] bool is_within(const Action& action) const {
    if (is_compute(action.op)) {
      return action.stage.valid() && action.stage.value <= last_stage_ && action.micro_batch.valid() &&
             action.micro_batch.index() < micro_batches_;
    }
    if (action.op == Op::report_loss) return action.group.valid() && action.group.value < program_.groups();
    return true;
  }

  /// Neighbours on the same rank hand over in memory.
  [[nodiscard]] bool sends(const Action& action) const {
    const StageId stage = action.stage;
    switch (action.op) {
      case Op::forward:
        return stage.value < last_stage_ &&
               placement_.rank_of(StageId{stage.value + 1}, action.micro_batch) != rank_;
      case Op::backward:
      case Op::backward_input:
        return stage.value > 0 && placement_.rank_of(StageId{stage.value - 1}, action.micro_batch) != rank_;
      case Op::report_loss:
        return scan_.reporter_ >= 0 && rank_ != placement_.ranks[0][0];
      default:
        return false;
    }
  }

  void read(const Action& action, std::int32_t index) {
    const StageId stage = action.stage;
    const MicroBatch mb = action.micro_batch;
    if (is_compute(action.op)) {
      if (stage.value > 0) read_boundary(Payload::activation, StageId{stage.value - 1}, stage, mb, index);
      if (is_backward(action.op) && stage.value < last_stage_) {
        read_boundary(Payload::gradient, StageId{stage.value + 1}, stage, mb, index);
      }
    } else if (action.op == Op::report_loss && rank_ == placement_.ranks[0][0]) {
      read_losses(action.group, index);
    }
  }

  void read_boundary(Payload payload, StageId from, StageId to, MicroBatch mb, std::int32_t index) {
    if (placement_.rank_of(from, mb) == rank_) return;  // handed over in memory
    if (local_[to.index()] == kNone) {
      local_[to.index()] = static_cast<std::int32_t>(known_.size() / (2 * micro_batches_));
      known_.resize(known_.size() + 2 * micro_batches_, kNone);
    }
    const std::size_t base = static_cast<std::size_t>(local_[to.index()]) * 2 * micro_batches_;
    note(known_[base + 2 * mb.index() + (payload == Payload::gradient ? 1 : 0)],
         {.payload = payload, .from = from, .to = to, .micro_batch = mb}, index);
  }

  void read_losses(Group group, std::int32_t index) {
    const StageId last{last_stage_};
    const std::int32_t width = placement_.width(last);
    losses_.resize(static_cast<std::size_t>(program_.groups()) * static_cast<std::size_t>(width), kNone);
    const std::int32_t first = program_.first_of(group).value;
    const std::int32_t size = program_.group_sizes[group.index()];
    for (std::int32_t replica = 0; replica < width; ++replica) {
      // Of `size` micro-batches in a row the replica has one if its next one after `first` is near enough.
      const bool reports = (replica - first % width + width) % width < size;
      if (!reports || placement_.ranks[last.index()][static_cast<std::size_t>(replica)] == rank_) continue;
      note(losses_[group.index() * static_cast<std::size_t>(width) + static_cast<std::size_t>(replica)],
           {.payload = Payload::loss,
            .from = last,
            .to = StageId{0},
            .micro_batch = MicroBatch{group.value},
            .index = replica},
           index);
    }
  }

  void note(std::int32_t& receive, const Tag& tag, std::int32_t index) {
    if (receive == kNone) {
      receive = static_cast<std::int32_t>(scan_.receives.size());
      scan_.receives.push_back({tag, channel_of(tag), index, index});
    }
    scan_.receives[static_cast<std::size_t>(receive)].last = index;
    scan_.reads_.push_back(receive);
  }

  std::int32_t channel_of(const Tag& tag) {
    const SlotInfo info{tag.payload, tag.from, tag.to, tag.index};
    auto& channels = scan_.channels;  // few: two a stage held, and the losses
    auto found =
        std::find_if(channels.begin(), channels.end(), [&](const Channel& c) { return c.info == info; });
    if (found == channels.end()) found = channels.insert(channels.end(), Channel{.info = info});
    ++found->transfers;
    return static_cast<std::int32_t>(found - channels.begin());
  }

  void count_held(std::size_t actions) {
    std::vector<std::int32_t> holding(scan_.channels.size(), 0);
    std::int32_t releases = 0;
    for (std::size_t i = 0; i < actions; ++i) {
      const auto here = static_cast<std::int32_t>(i);
      for (const std::int32_t r : scan_.reads(i)) {
        Receive& receive = scan_.receives[static_cast<std::size_t>(r)];
        const auto c = static_cast<std::size_t>(receive.channel);
        if (receive.first != here) continue;
        receive.releases_before = releases;
        scan_.channels[c].held = std::max(scan_.channels[c].held, ++holding[c]);
      }
      for (const std::int32_t r : scan_.reads(i)) {
        const Receive& receive = scan_.receives[static_cast<std::size_t>(r)];
        if (receive.last != here) continue;
        --holding[static_cast<std::size_t>(receive.channel)];
        scan_.channels[static_cast<std::size_t>(receive.channel)].releases.push_back(++releases);
      }
    }
  }

  const ScheduleProgram& program_;
  const Placement& placement_;
  Rank rank_;
  std::size_t micro_batches_;
  std::int32_t last_stage_;
  std::vector<std::int32_t> local_;   // stage -> its place among this rank's in known_
  std::vector<std::int32_t> known_;   // (local stage, micro-batch, activation or gradient) -> receive
  std::vector<std::int32_t> losses_;  // (group, replica) -> receive
  RankScan scan_;
};

}  // namespace

RankScan scan_rank(const ScheduleProgram& program, Rank rank) { return Scanner(program, rank).run(); }

std::vector<RankScan> scan_ranks(const ScheduleProgram& program) {
  std::vector<RankScan> scans;
  scans.reserve(program.ranks.size());
  for (std::size_t r = 0; r < program.ranks.size(); ++r) scans.push_back(scan_rank(program, Rank{r}));
  return scans;
}

Tag RankScan::sent_by(const Action& action) const {
  const StageId stage = action.stage;
  switch (action.op) {
    case Op::forward:
      return activation_after(action);
    case Op::report_loss:
      return {.payload = Payload::loss,
              .from = last_stage_,
              .to = StageId{0},
              .micro_batch = MicroBatch{action.group.value},
              .index = reporter_};
    default:
      return {.payload = Payload::gradient,
              .from = stage,
              .to = StageId{stage.value - 1},
              .micro_batch = action.micro_batch};
  }
}

}  // namespace stagecraft
