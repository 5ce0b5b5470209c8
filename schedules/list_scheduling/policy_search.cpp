#include "schedules/list_scheduling/policy_search.h"

#include "base/draws.h"
#include "schedules/list_scheduling/due_order.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

namespace stagecraft {
namespace {

constexpr std::size_t kParts = 3;  // forward, input gradient, weight gradient

/// A pattern: when each part of a stage's micro-batch is due, the next micro-batch's one period later.
struct Pattern {
  std::array<std::vector<Ticks>, kParts> due{};  // [part] by Workload::at
  std::vector<int> share{};                      // [stage] micro-batches it may hold
  int patience = 0;
  Ticks patient_until = kNever;
  bool in_order = false;  ///< due_order.h
};

/// Consecutive stages, no two on one rank: one way down or up the ranks.
struct Leg {
  int first = 0;
  int last = 0;
  [[nodiscard]] int stages() const { return last - first + 1; }
};

std::vector<Leg> legs_of(const Placement& placement) {
  std::vector<Leg> legs;
  std::vector<int> seen(to_size(placement.world()), -1);
  for (int s = 0; s < placement.stages(); ++s) {
    const auto held = [&](Rank rank) { return seen[rank.index()] == static_cast<int>(legs.size()); };
    const auto& ranks = placement.ranks[to_size(s)];
    if (legs.empty() || std::ranges::any_of(ranks, held)) legs.push_back({s, s});
    legs.back().last = s;
    for (const Rank rank : ranks) seen[rank.index()] = static_cast<int>(legs.size());
  }
  return legs;
}

class PolicySearch {
 public:
  PolicySearch(const Workload& workload, const KeepLimit& limit, const PolicySearchLimits& limits)
      : workload_(workload),
        limit_(limit),
        limits_(limits),
        draws_(limits.draws + 1),
        legs_(legs_of(workload.placement)) {
    const Placement& placement = workload.placement;
    std::vector<Ticks> work(to_size(placement.world()), 0);
    for (int s = 0; s < placement.stages(); ++s) {
      for (int mb = 0; mb < workload.micro_batches; ++mb) {
        const Rank rank = placement.rank_of(StageId{s}, MicroBatch{mb});
        for (const Op op : {Op::forward, Op::backward_input, Op::backward_weight})
          work[rank.index()] += workload.duration({op, StageId{s}, MicroBatch{mb}});
      }
      std::int64_t least = kNever;
      for (const Rank rank : placement.ranks[to_size(s)])
        least = std::min(least, limit.capacity[rank.index()]);
      const std::int64_t held = least / std::max<std::int64_t>(1, limit.forward[to_size(s)]);
      room_.push_back(static_cast<int>(std::clamp<std::int64_t>(held, 1, workload.micro_batches)));
    }
    period_ = std::max<Ticks>(1, std::ranges::max(work) / workload.micro_batches);
    least_ = least_step(workload);
  }

  std::vector<ListSchedule> run() {
    for (const Orders& seed : limits_.seeds) follow(seed);
    for (std::int64_t n = made_; n < limits_.schedules; ++n) {
      if (n % kAsk == 0 && limits_.go_on && !limits_.go_on()) break;
      const bool fresh = pool_.empty() || n < limits_.schedules / kFreshShare;
      attempt(fresh ? drawn() : changed());
    }
    std::vector<ListSchedule> best;
    for (Member& member : pool_) best.push_back(std::move(member.schedule));
    return best;
  }

 private:
  struct Member {
    Pattern pattern;
    ListSchedule schedule;
  };
  static constexpr std::size_t kPool = 6;
  static constexpr std::int64_t kAsk = 16;
  static constexpr std::int64_t kFreshShare = 5;  ///< one in so many is drawn, not changed
  static constexpr int kPermille = 1000;

  [[nodiscard]] Ticks part_of_period(std::int64_t permille) const { return period_ / kPermille * permille; }
  Ticks up_to(std::int64_t permille) { return part_of_period(draws_.between(0, permille)); }

  /// Idle time on a micro-batch's way: before each hop of a leg, at the turns, before weight gradients.
  struct Idle {
    std::vector<Ticks> forward, input, turn, weight;  // [leg]
  };
  using Due = std::array<std::vector<Ticks>, kParts>;  // of the first micro-batch, [stage]

  /// The way of a micro-batch without others.
  [[nodiscard]] Due way(const Idle& idle) const {
    const int stages = workload_.placement.stages();
    const MicroBatch mb{0};
    Due due;
    for (auto& of_part : due) of_part.resize(to_size(stages));
    auto& [forward, input, weight] = due;
    Ticks now = 0;
    for (std::size_t i = 0; i < legs_.size(); ++i) {
      for (int s = legs_[i].first; s <= legs_[i].last; ++s) {
        const StageId stage{s};
        if (s > legs_[i].first) now += idle.forward[i];
        forward[to_size(s)] = now;
        now += workload_.duration({Op::forward, stage, mb});
        if (s + 1 < stages) now += workload_.forward_hop(stage, mb).time;
      }
    }
    for (std::size_t i = legs_.size(); i-- > 0;) {
      now += idle.turn[i];
      for (int s = legs_[i].last; s >= legs_[i].first; --s) {
        const StageId stage{s};
        if (s < legs_[i].last) now += idle.input[i];
        input[to_size(s)] = now;
        now += workload_.duration({Op::backward_input, stage, mb});
        weight[to_size(s)] = now + idle.weight[i];
        if (s > 0) now += workload_.backward_hop(stage, mb).time;
      }
    }
    return due;
  }

  /// [rank] What is kept on average, times the period (Little's law).
  [[nodiscard]] std::vector<double> kept(const Due& due) const {
    std::vector<double> kept(to_size(workload_.placement.world()), 0);
    for (std::size_t s = 0; s < room_.size(); ++s) {
      const auto& ranks = workload_.placement.ranks[s];
      const double whole =
          static_cast<double>(limit_.forward[s]) * static_cast<double>(due[1][s] - due[0][s]);
      const double half = static_cast<double>(limit_.weight[s]) * static_cast<double>(due[2][s] - due[1][s]);
      for (const Rank rank : ranks) kept[rank.index()] += (whole + half) / static_cast<double>(ranks.size());
    }
    return kept;
  }

  /// Idle time on the way so that about as much is kept as there is memory for.
  Pattern drawn() {
    Idle none;
    for (auto* of : {&none.forward, &none.input, &none.turn, &none.weight}) of->assign(legs_.size(), 0);
    Idle some = none;
    const auto lag = [&](std::int64_t most) { return draws_.below(5) < 2 ? 0 : up_to(most); };
    for (std::size_t i = 0; i < legs_.size(); ++i) {
      some.forward[i] = lag(300);
      some.input[i] = lag(300);
      some.turn[i] = lag(500);
      none.weight[i] = some.weight[i] = up_to(3000);
    }
    const Due least = way(none);
    const Due most = way(some);
    const std::vector<double> kept_least = kept(least);
    const std::vector<double> kept_most = kept(most);
    const double fill = 0.7 + 0.5 * draws_.fraction();
    double part = 2;
    for (std::size_t r = 0; r < kept_least.size(); ++r) {
      if (kept_most[r] <= kept_least[r]) continue;
      const double room = fill * static_cast<double>(limit_.capacity[r]) * static_cast<double>(period_);
      part = std::min(part, (room - kept_least[r]) / (kept_most[r] - kept_least[r]));
    }
    const auto permille = static_cast<std::int64_t>(std::max(0.0, part) * kPermille);
    Pattern pattern;
    const bool by_kind = draws_.below(2) == 0;
    for (std::size_t k = 0; k < kParts; ++k) {
      auto& due = pattern.due[k];
      due.reserve(room_.size() * to_size(workload_.micro_batches));
      for (const Leg& leg : legs_) {
        const Ticks late = by_kind ? period_ * workload_.micro_batches / 2 * draws_.between(0, 2) : 0;
        for (std::size_t s = to_size(leg.first); s <= to_size(leg.last); ++s) {
          const Ticks first = least[k][s] + (most[k][s] - least[k][s]) / kPermille * permille + late;
          for (int mb = 0; mb < workload_.micro_batches; ++mb) due.push_back(first + mb * period_);
        }
      }
    }
    for (std::size_t i = 0; i < legs_.size(); ++i) {
      // Where a rank has a later stage, that needs room too.
      const bool last = i + 1 == legs_.size();
      const std::int64_t from = last ? draws_.between(300, 1200) : draws_.between(750, 1050);
      const std::int64_t to = last ? draws_.between(300, 1200) : draws_.between(450, 900);
      const Leg& leg = legs_[i];
      for (int s = leg.first; s <= leg.last; ++s) {
        const std::int64_t share_permille =
            from + (to - from) * (s - leg.first) / std::max(1, leg.stages() - 1);
        const std::int64_t share = (share_permille * room_[to_size(s)] + kPermille / 2) / kPermille;
        pattern.share.push_back(static_cast<int>(std::max<std::int64_t>(1, share)));
      }
    }
    pattern.patience = drawn_patience();
    pattern.patient_until = drawn_patient_until();
    pattern.in_order = draws_.below(2) == 0;
    return pattern;
  }
  int drawn_patience() { return static_cast<int>(draws_.below(5)) * 25; }
  Ticks drawn_patient_until() {
    return draws_.below(2) == 0 ? kNever : least_ + least_ / 1000 * draws_.between(0, 60);
  }

  /// One of the best, with a few changes or with parts of another.
  Pattern changed() {
    Pattern pattern = pool_[draws_.below(pool_.size())].pattern;
    const Pattern other = draws_.below(2) == 0 ? pool_[draws_.below(pool_.size())].pattern : drawn();
    const std::size_t changes = 1 + draws_.below(3);
    for (std::size_t i = 0; i < changes; ++i) {
      const std::size_t part = draws_.below(kParts + 1);
      const Leg& leg = legs_[draws_.below(legs_.size())];
      if (draws_.below(3) == 0) {
        take(pattern, other, part, leg);
      } else if (part < kParts) {
        const std::pair<int, int> part_of_step = stretch(0, workload_.micro_batches - 1);
        shift(leg, part_of_period(draws_.between(-400, 400) >> draws_.below(4)), [&](int s, Ticks by) {
          for (int mb = part_of_step.first; mb <= part_of_step.second; ++mb)
            pattern.due[part][workload_.at(StageId{s}, MicroBatch{mb})] += by;
        });
      } else {
        shift(leg, draws_.between(-kMostShare, kMostShare), [&](int s, Ticks by) {
          int& share = pattern.share[to_size(s)];
          share = std::max(1, share + static_cast<int>(by));
        });
      }
    }
    if (draws_.below(20) == 0) pattern.in_order = !pattern.in_order;
    if (draws_.below(10) == 0) pattern.patience = drawn_patience();
    if (draws_.below(6) == 0) pattern.patient_until = drawn_patient_until();
    return pattern;
  }

  void take(Pattern& into, const Pattern& from, std::size_t part, const Leg& leg) const {
    const auto copy = [&](const auto& of, auto& to, std::ptrdiff_t each) {
      std::copy(of.begin() + leg.first * each, of.begin() + (leg.last + 1) * each,
                to.begin() + leg.first * each);
    };
    if (part < kParts) {
      copy(from.due[part], into.due[part], workload_.micro_batches);
    } else {
      copy(from.share, into.share, 1);
    }
  }

  /// All, those up to one, those from one on, or some in between.
  std::pair<int, int> stretch(int first, int last) {
    const std::size_t way = draws_.below(6);
    if (way == 0 || way == 2) first = static_cast<int>(draws_.between(first, last));
    if (way == 1 || way == 2) last = static_cast<int>(draws_.between(first, last));
    return {first, last};
  }

  /// All of a leg, more of it towards one end, or a stretch.
  template <class Add>
  void shift(const Leg& leg, Ticks by, const Add& add) {
    const int steps = std::max(1, leg.stages() - 1);
    int first = leg.first;
    int last = leg.last;
    const std::size_t way = draws_.below(4);
    if (way == 3) {
      first = static_cast<int>(draws_.between(leg.first, leg.last));
      last = static_cast<int>(draws_.between(first, leg.last));
    }
    for (int s = first; s <= last; ++s) {
      const Ticks share = way == 1 ? by * (s - first) / steps : way == 2 ? by * (last - s) / steps : by;
      add(s, share);
    }
  }

  /// [stage] The most forwards before the first input gradient of their rank. Of the last leg any: no rank has a
  /// stage behind it that would need the room.
  [[nodiscard]] std::vector<int> ahead(const Orders& orders) const {
    std::vector<int> most(room_.size(), 1);
    for (const Order& order : orders) {
      std::vector<int> made(room_.size(), 0);
      for (const Compute& compute : order) {
        if (compute.op != Op::forward) break;
        int& here = most[compute.stage.index()];
        here = std::max(here, ++made[compute.stage.index()]);
      }
    }
    std::fill(most.begin() + legs_.back().first, most.end(), workload_.micro_batches);
    return most;
  }

  /// The seed's forwards and input gradients as they come, weight gradients where there is time.
  void follow(const Orders& seed) {
    Pattern pattern;
    Priorities latest;
    const auto value = replay(workload_, seed, &latest);
    if (!value) return;
    pattern.due = {std::move(latest.forward), std::move(latest.input), {}};
    pattern.due[2].assign(pattern.due[0].size(), 2 * std::max(value->step, value->other));
    pattern.share = ahead(seed);
    pattern.in_order = true;
    // A rank may be idle as long as its work would let it end with the others: when that is, nobody knows.
    const Ticks step = std::max<Ticks>(1, (value->step - least_) / kSteps);
    Ticks best = kNever;
    Ticks best_until = kNever;
    const auto attempt_with = [&](int patience, Ticks until) {
      if (made_ >= limits_.schedules) return;
      pattern.patience = patience;
      pattern.patient_until = until;
      attempt(pattern);
      if (pool_.empty() || pool_.front().schedule.value.step >= best) return;
      best = pool_.front().schedule.value.step;
      best_until = until;
    };
    attempt_with(0, kNever);
    attempt_with(50, kNever);
    attempt_with(100, kNever);
    for (Ticks k = 0; k < kSteps; ++k) {
      for (const int patience : {100, 50}) attempt_with(patience, least_ + k * step);
    }
    if (best_until == kNever) return;
    for (const Ticks off : {-2, -1, 1, 2}) attempt_with(100, best_until + off * step / 3);
  }

  void attempt(Pattern pattern) {
    ++made_;
    Policy policy{.priorities = {pattern.due[0], pattern.due[1], pattern.due[2]},
                  .share = pattern.share,
                  .patience = pattern.patience,
                  .patient_until = pattern.patient_until};
    const Ticks most = pool_.size() < kPool ? kNever : pool_.back().schedule.value.step;
    auto schedule = pattern.in_order ? due_order_within(workload_, limit_, policy, most)
                                     : list_schedule_within(workload_, limit_, policy, most);
    if (!schedule) return;
    const auto place = std::ranges::lower_bound(pool_, schedule->value, {},
                                                [](const Member& member) { return member.schedule.value; });
    if (place == pool_.end() && pool_.size() == kPool) return;
    if (place != pool_.end() && place->schedule.value == schedule->value) {
      if (draws_.below(2) == 0) place->pattern = std::move(pattern);
      return;
    }
    if (limits_.accept && !limits_.accept(schedule->orders)) return;
    pool_.insert(place, {std::move(pattern), std::move(*schedule)});
    if (pool_.size() > kPool) pool_.pop_back();
  }

  static constexpr std::int64_t kMostShare = 2;
  static constexpr Ticks kSteps = 10;

  const Workload& workload_;
  const KeepLimit& limit_;
  const PolicySearchLimits& limits_;
  Draws draws_;
  std::vector<Leg> legs_;
  std::vector<int> room_;  // [stage] the most micro-batches there is room for
  Ticks period_ = 1;
  Ticks least_ = 0;  // no order's step is less
  std::int64_t made_ = 0;
  std::vector<Member> pool_;  // best first
};

}  // namespace

std::vector<ListSchedule> search_policies(const Workload& workload, const KeepLimit& limit,
                                          const PolicySearchLimits& limits) {
  return PolicySearch(workload, limit, limits).run();
}

}  // namespace stagecraft
