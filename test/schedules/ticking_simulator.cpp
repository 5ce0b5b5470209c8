#include "test/schedules/ticking_simulator.h"

#include "schedules/costs/collectives.h"

#include <algorithm>
#include <map>
#include <optional>
#include <stdexcept>
#include <tuple>
#include <utility>

namespace stagecraft::test {
namespace {

int whole(Seconds seconds) {
  const int n = static_cast<int>(seconds.value);
  if (n != seconds.value) throw std::logic_error("ticks need whole seconds");
  return n;
}

struct Transfer {
  Rank sender, receiver;
  int place = 0;   // of its start
  int number = 0;  // in the order in which its sender started those to the same receiver
  std::optional<int> started, posted, ready, end;
};

class Ticker {
 public:
  Ticker(const LoweredProgram& program, const CostTable& costs) : program_(program), costs_(costs) {
    const std::size_t world = program.ranks.size();
    next_.assign(world, 0);
    busy_until_.assign(world, 0);
    for (std::size_t r = 0; r < world; ++r) {
      for (const Action& action : program.ranks[r]) {
        if (action.op == Op::post_receive) transfers_[action.tag].receiver = Rank{r};
        if (action.op == Op::start_send) transfers_[action.tag].sender = Rank{r};
      }
    }
    for (std::size_t r = 0; r < world; ++r) {
      std::map<Rank, int> started;
      for (std::size_t i = 0; i < program.ranks[r].size(); ++i) {
        const Action& action = program.ranks[r][i];
        if (action.op != Op::start_send) continue;
        Transfer& transfer = transfers_[action.tag];
        transfer.place = static_cast<int>(i);
        transfer.number = started[transfer.receiver]++;
      }
    }
  }

  Ticked run() {
    for (; !finished(); ++now_) {
      if (now_ > 1'000'000) throw std::logic_error("no end in sight");
      while (go_on() || take_transfer()) {
      }
    }
    return {*std::max_element(busy_until_.begin(), busy_until_.end()), busy_until_};
  }

 private:
  [[nodiscard]] bool finished() const {
    for (std::size_t r = 0; r < next_.size(); ++r) {
      if (next_[r] < program_.ranks[r].size()) return false;
    }
    return true;
  }

  /// One action of some rank, if any can do its next one now.
  bool go_on() {
    for (std::size_t r = 0; r < next_.size(); ++r) {
      if (busy_until_[r] > now_ || next_[r] == program_.ranks[r].size()) continue;
      const Action& action = program_.ranks[r][next_[r]];
      if (action.op == Op::reduce) {
        if (reduce(r, action)) return true;
        continue;
      }
      if (action.op == Op::agree_norm) {
        if (meet(action)) return true;
        continue;
      }
      if ((action.op == Op::wait_receive || action.op == Op::wait_send) && !over(transfers_[action.tag]))
        continue;
      if (action.op == Op::post_receive) transfers_[action.tag].posted = now_;
      if (action.op == Op::start_send) transfers_[action.tag].started = now_;
      busy_until_[r] = now_ + takes(Rank{r}, action);
      if (action.op == Op::backward || action.op == Op::backward_weight) {
        fed_[{Rank{r}, action.stage, action.group}] = busy_until_[r];
        ++feeds_[{Rank{r}, action.stage, action.group}];
      }
      ++next_[r];
      return true;
    }
    return false;
  }

  [[nodiscard]] bool over(const Transfer& transfer) const { return transfer.end && *transfer.end <= now_; }

  [[nodiscard]] int takes(Rank rank, const Action& action) const {
    if (!is_compute(action.op) && action.op != Op::step) return 0;
    const StageCosts& stage = costs_.stages[action.stage.index()];
    const double speed = costs_.speed_of(rank);
    switch (action.op) {
      case Op::forward:
      case Op::recompute:
        return whole(stage.forward / speed);
      case Op::backward:
        return whole((stage.backward_input + stage.backward_weight) / speed);
      case Op::backward_input:
        return whole(stage.backward_input / speed);
      case Op::backward_weight:
        return whole(stage.backward_weight / speed);
      default:
        return whole(stage.step / speed);
    }
  }

  /// When the rank's last backward into the reduction was or will be over, if that is known already. Random
  /// programs reduce a group once on every replica.
  std::optional<int> joins(Rank rank, const Action& action) {
    int all = 0;
    for (const Action& other : program_.ranks[rank.index()]) {
      const bool feeds = other.op == Op::backward || other.op == Op::backward_weight;
      if (feeds && other.stage == action.stage && other.group == action.group) ++all;
    }
    const std::tuple key(rank, action.stage, action.group);
    if (all > 0) return feeds_[key] == all ? std::optional(fed_[key]) : std::nullopt;
    // Nothing to add: it joins when it comes to the action.
    const std::size_t r = rank.index();
    if (next_[r] < program_.ranks[r].size()) {
      const Action& there = program_.ranks[r][next_[r]];
      const bool here = there.op == Op::reduce && there.stage == action.stage && there.group == action.group;
      if (here && busy_until_[r] <= now_) came_.try_emplace(key, now_);
    }
    const auto came = came_.find(key);
    return came == came_.end() ? std::nullopt : std::optional(came->second);
  }

  bool reduce(std::size_t r, const Action& action) {
    std::vector<Rank> members = program_.placement.ranks[action.stage.index()];
    std::sort(members.begin(), members.end());
    int last = 0;
    for (const Rank member : members) {
      const std::optional<int> joined = joins(member, action);
      if (!joined) return false;
      last = std::max(last, *joined);
    }
    const Bytes bytes = costs_.stages[action.stage.index()].parameters;
    busy_until_[r] = std::max(now_, last + whole(all_reduce(costs_.network, members, bytes).time()));
    ++next_[r];
    return true;
  }

  bool meet(const Action& action) {
    std::vector<Rank> members;
    for (std::size_t r = 0; r < next_.size(); ++r) members.emplace_back(r);
    for (const Rank member : members) {
      const std::size_t r = member.index();
      if (busy_until_[r] > now_ || next_[r] == program_.ranks[r].size()) return false;
      const Action& there = program_.ranks[r][next_[r]];
      if (there.op != action.op || there.group != action.group || there.stage != action.stage) return false;
    }
    const Seconds time = agreement_time(costs_.network, members);
    for (const Rank member : members) {
      busy_until_[member.index()] = now_ + whole(time);
      ++next_[member.index()];
    }
    return true;
  }

  /// A shared link: (level, child, direction).
  using SharedLink = std::tuple<std::size_t, int, int>;

  [[nodiscard]] std::vector<SharedLink> shared_links(const Transfer& t) const {
    int child = 1;
    for (std::size_t i = 0; i < costs_.network.levels.size(); ++i) {
      const NetworkLevel& level = costs_.network.levels[i];
      const int node = child * level.count;
      if (t.sender.value / node == t.receiver.value / node) {
        if (level.shared_by == SharedBy::pair) return {};
        return {{i, t.sender.value / child, 0}, {i, t.receiver.value / child, 1}};
      }
      child = node;
    }
    throw std::logic_error("no link");
  }

  [[nodiscard]] Bytes bytes(const Tag& tag) const {
    if (tag.payload == Payload::loss) return costs_.loss;
    const StageCosts& to = costs_.stages[tag.to.index()];
    return tag.payload == Payload::activation ? to.input : to.output;
  }

  [[nodiscard]] bool pair_free(const Transfer& transfer) const {
    return std::all_of(transfers_.begin(), transfers_.end(), [&](const auto& entry) {
      const Transfer& other = entry.second;
      return other.sender != transfer.sender || other.receiver != transfer.receiver ||
             other.number >= transfer.number || over(other);
    });
  }

  /// Begins one transfer, if one can begin now.
  bool take_transfer() {
    std::vector<std::pair<Tag, Transfer*>> waiting;
    for (auto& [tag, transfer] : transfers_) {
      if (!transfer.started || !transfer.posted || transfer.end) continue;
      if (!transfer.ready && pair_free(transfer)) transfer.ready = now_;
      if (transfer.ready) waiting.emplace_back(tag, &transfer);
    }
    std::sort(waiting.begin(), waiting.end(), [](const auto& a, const auto& b) {
      return std::tuple(*a.second->ready, a.second->sender, a.second->place) <
             std::tuple(*b.second->ready, b.second->sender, b.second->place);
    });
    std::vector<SharedLink> taken;  // by those under way, and by those that wait in front
    const auto take = [&](const Transfer& transfer) {
      bool free = true;
      for (const SharedLink& link : shared_links(transfer)) {
        free = free && std::find(taken.begin(), taken.end(), link) == taken.end();
      }
      for (const SharedLink& link : shared_links(transfer)) taken.push_back(link);
      return free;
    };
    for (const auto& [tag, transfer] : transfers_) {
      if (transfer.end && *transfer.end > now_) take(transfer);
    }
    for (const auto& [tag, transfer] : waiting) {
      if (!take(*transfer)) continue;
      transfer->end =
          now_ + whole(costs_.network.between(transfer->sender, transfer->receiver).time(bytes(tag)));
      return true;
    }
    return false;
  }

  const LoweredProgram& program_;
  const CostTable& costs_;
  int now_ = 0;
  std::vector<std::size_t> next_;  // per rank
  std::vector<int> busy_until_;    // per rank
  std::map<Tag, Transfer> transfers_;
  using Share = std::tuple<Rank, StageId, Group>;  // of a reduction
  std::map<Share, int> fed_, feeds_, came_;        // the last backward's end; backwards so far; came without
};

}  // namespace

Ticked tick(const LoweredProgram& program, const CostTable& costs) { return Ticker(program, costs).run(); }

}  // namespace stagecraft::test
