#include "schedules/synthesis/pricing.h"

#include "base/bisect.h"
#include "schedules/lowering/lowering.h"

#include <algorithm>
#include <utility>

namespace stagecraft::synthesis {

CostClock::CostClock(const Problem& problem, const TransferScript& script)
    : TransferRun(script, ReceivePosts::start(script)),
      problem_(problem),
      hops_(script.numbers().size()),
      links_(script.ranks() * script.ranks()),
      lanes_(script.ranks()) {
  const TagNumbers& numbers = script.numbers();
  const auto hop = [&](Rank from, Rank to, double seconds) {
    return Hop{from.index() * lanes_.size() + to.index(), seconds};
  };
  for (int s = 0; s + 1 < problem.stages(); ++s) {
    const StageId before{s};
    const StageId behind{s + 1};
    for (int i = 0; i < problem.micro_batches(); ++i) {
      const MicroBatch mb{i};
      const Rank first = problem.replica(before, mb).rank;
      const Rank second = problem.replica(behind, mb).rank;
      hops_[numbers.activation(before, mb)] = hop(first, second, problem.activation_seconds(behind, mb));
      hops_[numbers.gradient(behind, mb)] = hop(second, first, problem.gradient_seconds(before, mb));
    }
  }
  const Rank printing = problem.printing_rank();
  const auto& reporters = problem.placement().ranks.back();
  for (std::size_t i = 0; i < reporters.size(); ++i) {
    if (reporters[i] == printing) continue;
    hops_[numbers.loss(Group{0}, static_cast<std::int32_t>(i))] =
        hop(reporters[i], printing, problem.loss_seconds(reporters[i]));
  }
}

void CostClock::take(std::size_t rank, const Order& order) {
  Lane& lane = lanes_[rank];
  lane.times.clear();
  for (const Compute& c : order) {
    lane.times.push_back({problem_.seconds(c), problem_.recompute_seconds(c.stage, c.micro_batch)});
  }
  lane.begins.resize(order.size());
  lane.ends.resize(order.size());
}

void CostClock::begin() {
  std::fill(links_.begin(), links_.end(), 0.0);
  for (Lane& lane : lanes_) {
    lane.computed = 0;
    lane.before_recompute.reset();
  }
}

void CostClock::compute(std::uint32_t rank, Op op, double& now) {
  Lane& lane = lanes_[rank];
  const Times& times = lane.times[lane.computed];
  if (op == Op::recompute) {
    lane.before_recompute = now;
    lane.recomputed = now += times.recompute;
    return;
  }
  double begin = now;
  if (const auto before = std::exchange(lane.before_recompute, {})) {
    begin = now > lane.recomputed ? now - (lane.recomputed - *before) : *before;
  }
  lane.begins[lane.computed] = begin;
  lane.ends[lane.computed++] = now += times.seconds;
}

std::int64_t CostClock::work() const {
  std::int64_t done = 0;
  for (std::size_t r = 0; r < lanes_.size(); ++r) {
    done += static_cast<std::int64_t>(lanes_[r].computed);
    if (at(r) == nullptr) continue;
    return at(r)->kind == TransferEvent::Kind::start_send ? done - 1 : done;
  }
  return done;
}

Pricing::Pricing(const Problem& problem)
    : problem_(problem),
      header_{"auto", SegmentKind::train, problem.placement(), {problem.micro_batches()}},
      writer_(header_),
      script_(header_, LoweringOptions{}.sends_in_flight),
      ticks_(script_),
      costs_(problem, script_),
      laid_(script_.ranks()),
      laid_before_(script_.ranks()),
      clock_(script_.ranks()) {}

const Price& Pricing::run(const Orders& orders) {
  for (std::size_t r = 0; r < orders.size(); ++r) {
    if (script_.laid(r) == 0 || orders[r] != laid_[r]) take(r, orders[r]);
  }
  ++runs_;
  const int usual = unhurried_surplus(ticks_, LoweringOptions{}.extra_slots);
  extra_slots_ = usual;
  if (!pass(usual)) {
    // As lowering does: as few more slots as make it work, if any number does.
    const int most = std::max(usual, problem_.micro_batches());
    if (!pass(most)) {
      price_ = {};
      return price_;
    }
    extra_slots_ = least_that(usual + 1, most, [&](int surplus) { return pass(surplus); });
    pass(extra_slots_);
  }
  conclude();
  return price_;
}

/// Lays the order as a program has it: with recomputes, and what belongs to forwards.
void Pricing::take(std::size_t rank, const Order& order) {
  costs_.take(rank, order);
  std::swap(laid_[rank], laid_before_[rank]);
  if (script_.laid(rank) != 0 && order == laid_[rank]) {  // a search took its change back
    script_.swap_back(Rank{rank});
    return;
  }
  laid_[rank] = order;
  list_.clear();
  for (const Compute& c : order) {
    if (is_input_part(c.op) && problem_.recomputed(c.stage, c.micro_batch)) {
      writer_.write(list_, Op::recompute, c.stage, c.micro_batch, Version{0});
    }
    writer_.write(list_, c.op, c.stage, c.micro_batch, Version{0});
  }
  script_.lay(Rank{rank}, list_);
}

/// With `surplus` slots beyond those read at once. False when the orders deadlock.
bool Pricing::pass(int surplus) {
  const bool finishes = costs_.run(surplus);
  work_ += costs_.work();
  return finishes;
}

double Pricing::needed_from(std::size_t rank) const {
  const std::vector<double>& begins = costs_.begins(rank);
  if (!problem_.goes_on() || begins.empty()) return 0;
  const Compute& first = laid_[rank].front();
  const bool received = first.op == Op::forward && first.stage.value > 0;
  return begins.front() - (received ? problem_.activation_seconds(first.stage, first.micro_batch) : 0);
}

/// The flush: replicas wait for each other, and all ranks where the norm is agreed on; then they step, and
/// what is under way ends.
void Pricing::conclude() {
  double sum = 0;
  for (std::size_t r = 0; r < clock_.size(); ++r) sum += (clock_[r] = costs_.now(r)) - needed_from(r);
  price_.mean_end = sum / static_cast<double>(clock_.size());
  for (const std::vector<Rank>& replicas : problem_.placement().ranks) {
    double latest = 0;
    for (const Rank rank : replicas) latest = std::max(latest, clock_[rank.index()]);
    for (const Rank rank : replicas) clock_[rank.index()] = latest;
  }
  if (problem_.clip())
    std::fill(clock_.begin(), clock_.end(), *std::max_element(clock_.begin(), clock_.end()));
  for (const TimedReplica& replica : problem_.replicas()) clock_[replica.rank.index()] += replica.step;
  double& printing = clock_[problem_.printing_rank().index()];
  const TagNumbers& numbers = script_.numbers();
  for (std::size_t loss = numbers.losses(); loss < numbers.size(); ++loss) {
    if (costs_.holds(loss)) printing = std::max(printing, costs_.when(loss));
  }
  price_.makespan = price_.seconds = 0;
  for (std::size_t r = 0; r < script_.ranks(); ++r) {
    const auto& events = script_.events(r);
    for (std::size_t i = script_.drain(r); i < events.size(); ++i) {
      clock_[r] = std::max(clock_[r], costs_.when(events[i].operand));
    }
    price_.makespan = std::max(price_.makespan, clock_[r]);
    price_.seconds = std::max(price_.seconds, clock_[r] - needed_from(r));
  }
}

}  // namespace stagecraft::synthesis
