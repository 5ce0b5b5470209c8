// The V schedules, which differ in how much a rank may keep (Qi et al., "Pipeline Parallelism with Controllable Memory", arXiv 2405.15362,
// section 3): orders from a pattern that repeats every so often, in which a micro-batch's parts and the next
// one's fit in between each other. What a rank keeps follows from how long a micro-batch stays. The paper
// draws patterns for equal times; here they are found for the true ones, by modulo scheduling (Rau,
// "Iterative Modulo Scheduling", MICRO 1994).

#include "schedules/generators/assembly.h"
#include "schedules/generators/registry.h"
#include "schedules/generators/v_blocks.h"
#include "schedules/generators/v_turns.h"
#include "schedules/list_scheduling/policy_search.h"

#include <algorithm>
#include <array>
#include <optional>
#include <tuple>
#include <utility>

namespace stagecraft {
namespace {

/// When a micro-batch's part begins, and how long it takes.
struct Part {
  Compute compute{};
  Ticks begin = 0;
  Ticks duration = 0;
};

/// One rank's time, in which everything comes again after `period`.
class Cycle {
 public:
  /// Nothing is taken, of such a period.
  void begin(Ticks period) {
    period_ = period;
    taken_.clear();
  }

  /// Gives back all but the first `count` intervals.
  void give_back(std::size_t count) { taken_.resize(std::min(count, taken_.size())); }

  /// Takes the first free interval at or after `from`; nothing if none is long enough.
  std::optional<Ticks> take(Ticks from, Ticks duration) {
    Ticks begin = from;
    // Kept beside `begin`, because divisions are what takes long here.
    Ticks within = from % period_;
    for (bool moved = true; moved;) {
      moved = false;
      for (const auto& [taken, length] : taken_) {
        const Ticks since = within < taken ? within - taken + period_ : within - taken;
        Ticks by = 0;
        if (since < length) {
          by = length - since;
        } else if (since + duration > period_) {
          by = period_ - since + length;
        } else {
          continue;
        }
        begin += by;
        for (within += by; within >= period_;) within -= period_;
        moved = true;
      }
      if (begin - from > period_) return std::nullopt;
    }
    taken_.emplace_back(within, duration);
    return begin;
  }

 private:
  Ticks period_ = 1;
  std::vector<std::pair<Ticks, Ticks>> taken_;
};

using Pattern = std::vector<std::vector<Part>>;  ///< [position]

/// Idle time before each next part of one leg: forwards down the ranks and back up, input gradients down and back up;
/// and before the first input gradient. A pattern may fit only with some.
struct Lags {
  std::array<Ticks, 3> part{};
  std::array<Ticks, 3> turn{};
};

/// Places one replica's first micro-batch, again and again.
class PatternPlace {
 public:
  /// Keeps references to both.
  PatternPlace(const Workload& workload, const VirtualStages& shape, int replica)
      : workload_(workload),
        shape_(shape),
        mb_{replica},
        pattern_(to_size(shape.ranks)),
        cycles_(pattern_.size()),
        input_end_(2 * pattern_.size()) {}

  /// With each choice of lags as early as these and those before and after it allow. Tells `take` of each pattern and
  /// the number of its choice. What several choices begin with is placed once.
  template <class Take>
  void place(Ticks period, const Lags& lags, const Take& take) {
    for (Cycle& cycle : cycles_) cycle.begin(period);
    place_leg(0, 0, lags, 0, take);
  }

 private:
  static constexpr int kLegs = 4, kBackward = 2;         // the last two are input gradients
  static constexpr int kChoices[kLegs] = {27, 9, 3, 1};  // how choices are numbered
  static constexpr int kTurnChoice = 81;

  template <class Take>
  void place_leg(int leg, Ticks end, const Lags& lags, int choice, const Take& take) {
    const std::size_t turns = leg == kBackward ? lags.turn.size() : 1;
    for (std::size_t turn = 0; turn < turns; ++turn) {
      for (std::size_t i = 0; i < lags.part.size(); ++i) {
        const int chosen =
            choice + static_cast<int>(turn) * kTurnChoice + static_cast<int>(i) * kChoices[leg];
        if (const auto next = add_leg(leg, end, leg == kBackward ? lags.turn[turn] : 0, lags.part[i])) {
          if (leg + 1 < kLegs) {
            place_leg(leg + 1, *next, lags, chosen, take);
          } else {
            if (add_weights()) take(std::as_const(pattern_), chosen);
            give_back(kLegs);
          }
        }
        give_back(to_size(leg));
      }
    }
  }

  /// When its last part ends; nothing where there is no place for one of them.
  std::optional<Ticks> add_leg(int leg, Ticks from, Ticks turn, Ticks lag) {
    const int last = 2 * shape_.ranks - 1;
    std::optional<Ticks> end = from;
    for (int i = 0; i < shape_.ranks; ++i) {
      const int at = leg * shape_.ranks + i;
      if (leg < kBackward) {
        const bool first = at == 0;
        const Ticks hop = first ? 0 : workload_.forward_hop(StageId{at - 1}, mb_).time + lag;
        end = add(Op::forward, at, *end + hop);
      } else {
        const int s = last - (at - kBackward * shape_.ranks);
        const Ticks hop = s == last ? turn : workload_.backward_hop(StageId{s + 1}, mb_).time + lag;
        end = add(Op::backward_input, s, *end + hop);
        if (end) input_end_[to_size(s)] = *end;
      }
      if (!end) return std::nullopt;
    }
    return end;
  }

  [[nodiscard]] bool add_weights() {
    for (int s = 2 * shape_.ranks - 1; s >= 0; --s) {
      if (!add(Op::backward_weight, s, input_end_[to_size(s)])) return false;
    }
    return true;
  }

  std::optional<Ticks> add(Op op, int stage, Ticks from) {
    const std::size_t at = to_size(stage < shape_.ranks ? stage : 2 * shape_.ranks - 1 - stage);
    const Compute compute{op, StageId{stage}, mb_};
    const Ticks duration = workload_.duration(compute);
    const auto begin = cycles_[at].take(from, duration);
    if (!begin) return std::nullopt;
    pattern_[at].push_back({compute, *begin, duration});
    return *begin + duration;
  }

  /// All but the parts of so many legs, of which each has one on each position.
  void give_back(std::size_t legs) {
    for (std::size_t at = 0; at < pattern_.size(); ++at) {
      pattern_[at].resize(std::min(legs, pattern_[at].size()));
      cycles_[at].give_back(legs);
    }
  }

  const Workload& workload_;
  const VirtualStages& shape_;
  MicroBatch mb_;
  Pattern pattern_;
  std::vector<Cycle> cycles_;     // [position]
  std::vector<Ticks> input_end_;  // [stage]
};

/// Pairs that a position keeps at once, micro-batches following each other every `period`.
int kept(const std::vector<Part>& parts, Ticks period) {
  int most = 0;
  for (const Part& at : parts) {
    if (at.compute.op != Op::forward) continue;
    Ticks now = 0;
    for (const Part& part : parts) {
      if (part.compute.op == Op::backward_input) continue;
      // Parts of earlier and later micro-batches that have begun or ended when this one begins.
      const bool begins = part.compute.op == Op::forward;
      const Ticks event = begins ? part.begin : part.begin + part.duration;
      const Ticks before = part.begin / period;
      const Ticks count = (at.begin - event + (before + 2) * period) / period - before;
      now += begins ? count : -count;
    }
    most = std::max(most, static_cast<int>(now));
  }
  return most;
}

struct FoundPattern {
  Ticks period = 0;
  int choice = 0;  ///< of lags
  Pattern pattern{};
  int kept = 0;  ///< on the position that keeps most
  Ticks end = 0;
};

/// Patterns of the least period that has any, tried in steps of a fiftieth, in which no position keeps more
/// than `capacity`: those that use most of it, of these the soonest to end.
std::vector<FoundPattern> patterns(const Workload& workload, const VirtualStages& shape, int replica,
                                   std::int64_t capacity) {
  constexpr std::size_t kEnough = 5;
  const MicroBatch mb{replica};
  Ticks busiest = 1;
  Ticks forwards = 0;
  for (int position = 0; position < shape.ranks; ++position) {
    Ticks work = 0;
    for (const int chunk : {0, 1}) {
      const StageId stage = shape.stage(position, chunk);
      for (const Op op : {Op::forward, Op::backward_input, Op::backward_weight}) {
        work += workload.duration({op, stage, mb});
      }
      forwards += workload.duration({Op::forward, stage, mb});
    }
    busiest = std::max(busiest, work);
  }
  const Ticks half = std::max<Ticks>(1, forwards / (Ticks{4} * shape.ranks));  // of a mean forward
  std::vector<FoundPattern> found;
  PatternPlace places(workload, shape, replica);
  for (int stretch = 50; stretch < 75 && found.empty(); ++stretch) {
    const Ticks period = (busiest * stretch + 49) / 50;
    const Lags lags{.part = {0, half, 2 * half}, .turn = {0, period / 3, period / 2}};
    places.place(period, lags, [&](const Pattern& pattern, int choice) {
      FoundPattern one{.period = period, .choice = choice};
      for (const std::vector<Part>& parts : pattern) {
        one.kept = std::max(one.kept, kept(parts, period));
        for (const Part& part : parts) one.end = std::max(one.end, part.begin + part.duration);
      }
      if (one.kept > capacity) return;
      one.pattern = pattern;
      found.push_back(std::move(one));
    });
  }
  std::ranges::sort(found, {},
                    [](const FoundPattern& one) { return std::tuple(-one.kept, one.end, one.choice); });
  if (found.size() > kEnough) found.resize(kEnough);
  return found;
}

/// All micro-batches of a position, `period` after each other.
std::vector<Compute> unroll(const std::vector<Part>& parts, Ticks period, int replicas, int micro_batches) {
  std::vector<std::pair<Ticks, Compute>> timed;
  for (const Part& part : parts) {
    Ticks shift = 0;
    for (int mb = part.compute.micro_batch.value; mb < micro_batches; mb += replicas, shift += period) {
      timed.push_back({part.begin + shift, {part.compute.op, part.compute.stage, MicroBatch{mb}}});
    }
  }
  std::ranges::stable_sort(timed, {}, &std::pair<Ticks, Compute>::first);
  std::vector<Compute> order;
  order.reserve(timed.size());
  for (const auto& [begin, compute] : timed) order.push_back(compute);
  return order;
}

std::vector<Orders> pattern_orders(const Workload& workload, const VirtualStages& shape,
                                   std::int64_t capacity) {
  std::vector<Orders> seeds;
  for (int replica = 0; replica < shape.replicas; ++replica) {
    if (replica >= workload.micro_batches) break;
    const auto found = patterns(workload, shape, replica, capacity);
    if (found.empty()) return {};
    if (replica == 0) seeds.assign(found.size(), Orders(to_size(workload.placement.world())));
    for (std::size_t i = 0; i < seeds.size(); ++i) {
      const FoundPattern& one = found[std::min(i, found.size() - 1)];
      for (std::size_t position = 0; position < one.pattern.size(); ++position) {
        const Rank rank = workload.placement.ranks[position][to_size(replica)];
        seeds[i][rank.index()] =
            unroll(one.pattern[position], one.period, shape.replicas, workload.micro_batches);
      }
    }
  }
  return seeds;
}

constexpr std::int64_t kPolicies = 30;  ///< orders to try beside the patterns and those of general rules

/// The best that list scheduling by the request's costs makes, the patterns included, where no rank keeps
/// more than `micro_batches(ranks)` micro-batches' share from their forward to their weight gradient.
Orders v_orders(const char* schedule, const ScheduleRequest& request, int (*micro_batches)(int ranks)) {
  const VirtualStages shape = virtual_stages(request.placement, PlacementKind::v, schedule);
  const std::int64_t capacity = std::int64_t{shape.virtual_stages} * micro_batches(shape.ranks);
  // The paper's patterns, for equal times, make good orders for unequal ones too.
  WorkloadRequest equal = workload_request(request);
  equal.costs = nullptr;
  equal.recompute.clear();
  std::vector<Orders> seeds = pattern_orders(workload_of(equal), shape, capacity);
  for (Orders& orders : v_block_orders(workload_of(equal), shape, static_cast<int>(capacity)))
    seeds.push_back(std::move(orders));
  const auto add_patterns = [&](const WorkloadRequest& of) {
    for (Orders& orders : pattern_orders(workload_of(of), shape, capacity))
      seeds.push_back(std::move(orders));
  };
  if (request.costs != nullptr) add_patterns(workload_request(request));
  // In a pattern a recompute waits for the gradient: what fits without may be better.
  if (!request.recompute.empty()) {
    WorkloadRequest plain = workload_request(request);
    plain.recompute.clear();
    add_patterns(plain);
    ScheduleRequest without = request;
    without.recompute.clear();
    if (any_recompute(request.recompute)) seeds.push_back(v_orders(schedule, without, micro_batches));
  }
  const KeepLimit limit = stage_limit(request.placement, capacity);
  Orders known = best_orders(workload_request(request), limit, std::move(seeds));
  if (request.costs == nullptr || any_recompute(request.recompute)) return known;
  const Workload workload = workload_of(workload_request(request));
  const auto value = replay(workload, known);
  PolicySearchLimits limits{.schedules = kPolicies};
  if (capacity >= std::int64_t{shape.virtual_stages} * shape.ranks) {
    limits.seeds = {v_turn_orders(workload, shape)};
  } else {
    limits.seeds = {known};
  }
  auto found = search_policies(workload, limit, limits);
  return found.empty() || found.front().value >= *value ? std::move(known) : std::move(found.front().orders);
}

Schedule v_schedule(const char* name, const char* summary, int (*micro_batches)(int ranks)) {
  return {.name = name,
          .summary = summary,
          .paper = "Pipeline Parallelism with Controllable Memory, arXiv 2405.15362",

          .placement = PlacementKind::v,
          .virtual_stages = 2,
          .orders_by_time = true,
          .build = [=](const ScheduleRequest& request) {
            return program_by_time(name, request, [&](const ScheduleRequest& one) {
              return v_orders(name, one, micro_batches);
            });
          }};
}

}  // namespace

/// Zero bubble on a V in 1F1B's memory: a micro-batch goes down the ranks and back up, so the first rank,
/// where it stays longest, has its last stage as well, where it stays shortest (Qi et al., "Pipeline
/// Parallelism with Controllable Memory", arXiv 2405.15362, section 3: V-ZB; its first form is ZB-V in arXiv
/// 2401.10241, section 6). Every rank keeps at most p micro-batches' share.
Schedule zb_v_schedule() {
  return v_schedule("zb_v",
                    "a V of two stages per rank: 1F1B's memory on every rank, the bubble of the fill alone",
                    [](int ranks) { return ranks; });
}

/// Half of 1F1B's memory on a V: micro-batches stay half as long as under zb_v (Qi et al., "Pipeline
/// Parallelism with Controllable Memory", arXiv 2405.15362, section 3: V-Half). Every rank keeps at most
/// floor((p + 2) / 2) micro-batches' share.
Schedule v_half_schedule() {
  return v_schedule("v_half", "a V of two stages per rank in half of 1F1B's memory",
                    [](int ranks) { return (ranks + 2) / 2; });
}

/// The least memory on a V: every hop follows at once (Qi et al., "Pipeline Parallelism with Controllable
/// Memory", arXiv 2405.15362, section 3: V-Min). Every rank keeps at most floor((p + 4) / 3) micro-batches'
/// share, a third of 1F1B's.
Schedule v_min_schedule() {
  return v_schedule("v_min", "a V of two stages per rank in a third of 1F1B's memory",
                    [](int ranks) { return (ranks + 4) / 3; });
}

}  // namespace stagecraft
