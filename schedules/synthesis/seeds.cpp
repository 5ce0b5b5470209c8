#include "schedules/synthesis/seeds.h"

#include "schedules/costs/traffic.h"
#include "schedules/list_scheduling/policy_search.h"
#include "schedules/lowering/lowering.h"
#include "schedules/synthesis/peak_memory.h"

#include <algorithm>
#include <array>

namespace stagecraft::synthesis {
namespace {

Orders split(const Orders& orders) {
  Orders halves;
  for (const Order& order : orders) {
    Order& list = halves.emplace_back();
    for (const Compute& c : order) {
      if (c.op == Op::backward) {
        list.push_back({Op::backward_input, c.stage, c.micro_batch});
        list.push_back({Op::backward_weight, c.stage, c.micro_batch});
      } else {
        list.push_back(c);
      }
    }
  }
  return halves;
}

Workload workload_for(const Problem& problem) {
  return workload_of({.placement = problem.placement(),
                      .micro_batches = problem.micro_batches(),
                      .costs = &problem.costs(),
                      .recompute = problem.recompute(),
                      .priced_as = problem.priced_as(),
                      .goes_on = problem.goes_on()});
}

/// A rank prefers what stands earlier in its order.
Priorities priorities_of(const Workload& workload, const Orders& orders) {
  const std::size_t all = to_size(workload.placement.stages()) * to_size(workload.micro_batches);
  Priorities priorities{std::vector<Ticks>(all, 0), std::vector<Ticks>(all, 0), std::vector<Ticks>(all, 0)};
  for (const Order& order : orders) {
    for (std::size_t i = 0; i < order.size(); ++i) {
      const auto place = static_cast<Ticks>(i);
      const std::size_t at = workload.at(order[i].stage, order[i].micro_batch);
      if (order[i].op == Op::forward) priorities.forward[at] = place;
      if (is_input_part(order[i].op)) priorities.input[at] = place;
      if (is_weight_part(order[i].op)) priorities.weight[at] = place;
    }
  }
  return priorities;
}

/// Of the room for what is kept.
constexpr std::array kShares{1.3, 1.2, 1.1, 1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.35, 0.2};

constexpr PriorityRule kRules[] = {{0, 1, 1, 2}, {0, 0, 0, 1}, {0, 2, 2, 1}};

/// Of each stage: how many stages its first replica's rank has before it.
std::vector<int> chunks_of(const Placement& placement) {
  std::vector<int> held(to_size(placement.world()), 0);
  std::vector<int> chunks;
  for (const std::vector<Rank>& replicas : placement.ranks) {
    chunks.push_back(held[replicas.front().index()]);
    for (const Rank rank : replicas) ++held[rank.index()];
  }
  return chunks;
}

}  // namespace

Seeds::Seeds(const Problem& problem, Pricing& pricing)
    : problem_(problem), pricing_(pricing), workload_(workload_for(problem)) {}

void Seeds::add_schedule(const std::string& name, const Orders& orders) {
  if (!well_formed(problem_, orders)) return;
  (void)add(name, orders);
  (void)add(name + " split", split(orders));
}

void Seeds::add_squeezed(const std::string& name, const Orders& orders) {
  if (!well_formed(problem_, orders)) return;
  const Priorities priorities = priorities_of(workload_, orders);
  for (const int patience : {0, 100}) {
    add_within(name + " squeezed", {.priorities = priorities, .patience = patience});
  }
}

void Seeds::add_one_at_a_time() {
  Orders orders(to_size(problem_.ranks()));
  for (int i = 0; i < problem_.micro_batches(); ++i) {
    const auto append = [&](Op op, int stage) {
      const MicroBatch mb{i};
      orders[problem_.replica(StageId{stage}, mb).rank.index()].push_back({op, StageId{stage}, mb});
    };
    for (int s = 0; s < problem_.stages(); ++s) append(Op::forward, s);
    for (int s = problem_.stages() - 1; s >= 0; --s) append(Op::backward, s);
  }
  add_schedule("one micro-batch at a time", orders);
}

void Seeds::add_lists() {
  for (const double share : kShares) {
    if (add("list schedule", best_orders(workload_, limit_of(share))) || !problem_.capacity()) return;
  }
}

void Seeds::add_keeping(const std::function<std::vector<Orders>(int micro_batches)>& keeping) {
  if (!problem_.capacity()) return;
  constexpr int kMore = 2;  // where less is kept for weight gradients, there is room for more
  const KeepLimit limit = limit_of(1);
  std::int64_t room = std::int64_t{problem_.stages()} * problem_.micro_batches();
  for (int r = 0; r < problem_.ranks(); ++r) {
    const auto& replicas = problem_.replicas_of(Rank{r});
    std::int64_t kept = 0;
    for (const std::size_t i : replicas) kept += limit.forward[problem_.replicas()[i].stage.index()];
    room = std::min(room, limit.capacity[to_size(r)] * static_cast<std::int64_t>(replicas.size()) / kept);
  }
  for (int more = 0; more <= kMore; ++more) {
    for (const Orders& orders : keeping(static_cast<int>(room) + more)) (void)add("blocks", orders);
  }
}

void Seeds::add_shared(const std::function<bool()>& go_on) {
  constexpr int kMost = 4;
  const std::vector<int> chunks = chunks_of(problem_.placement());
  const int last = *std::max_element(chunks.begin(), chunks.end());
  for (int first_share = 1; first_share <= kMost; ++first_share) {
    for (int last_share = 1; last_share <= (last == 0 ? 1 : kMost); ++last_share) {
      std::vector<int> share;
      for (const int chunk : chunks)
        share.push_back(last == 0 ? first_share : first_share + (last_share - first_share) * chunk / last);
      for (const PriorityRule& rule : kRules) {
        if (!go_on()) return;
        add_within("list schedule by shares", {.priorities = by_rule(workload_, rule), .share = share});
      }
    }
  }
}

void Seeds::follow(std::size_t most, const std::function<bool()>& go_on) {
  for (const Seed& seed : best(most)) {
    double seconds = seed.seconds();
    Orders orders = split(seed.found.orders);
    for (bool better = true; better && go_on();) {
      better = false;
      Priorities latest;
      if (!replay(workload_, orders, &latest)) break;
      for (const int patience : {0, 50, 100}) {
        const std::size_t before = seeds_.size();
        add_within(seed.name, {.priorities = latest, .patience = patience});
        if (seeds_.size() == before || seeds_.back().seconds() >= seconds) continue;
        seconds = seeds_.back().seconds();
        orders = seeds_.back().found.orders;
        better = true;
      }
    }
  }
}

std::vector<Seed> Seeds::add_patterns(std::int64_t schedules, std::uint64_t draws,
                                      const std::function<bool()>& go_on) {
  constexpr std::size_t kFollowed = 4;
  PolicySearchLimits limits{.schedules = schedules, .draws = draws, .go_on = go_on};
  limits.accept = [&](const Orders& orders) { return fits(problem_, orders); };
  for (const Seed& seed : best(kFollowed)) limits.seeds.push_back(split(seed.found.orders));
  const std::size_t before = seeds_.size();
  for (const ListSchedule& found : search_policies(workload_, largest_limit(), limits))
    (void)add("pattern", found.orders);
  return {seeds_.begin() + static_cast<std::ptrdiff_t>(before), seeds_.end()};
}

/// The largest within which some list schedule fits.
KeepLimit Seeds::largest_limit() {
  const Priorities priorities = by_rule(workload_, kRules[0]);
  for (const double share : kShares) {
    const KeepLimit limit = limit_of(share);
    if (!problem_.capacity() || schedule_that_fits(limit, {.priorities = priorities})) return limit;
  }
  return limit_of(kShares.back());
}

/// The limit counts roughly what the proof counts exactly: from more than there is down to what fits. A schedule
/// that the proof would refuse is given up as soon as one of its ranks holds too much.
void Seeds::add_within(const std::string& name, const Policy& policy) {
  if (!problem_.capacity()) return void(add(name, list_schedule(workload_, limit_of(1), policy)));
  std::vector<std::int64_t> last;
  std::optional<Orders> orders;
  for (const double share : kShares) {
    const KeepLimit limit = limit_of(share);
    if (limit.capacity != last) orders = schedule_that_fits(limit, policy);
    last = limit.capacity;
    if (orders && add_fitting(name, *orders)) return;
  }
}

std::optional<Orders> Seeds::schedule_that_fits(const KeepLimit& limit, const Policy& policy) const {
  std::vector<PeakMemory> memory;
  for (int r = 0; r < problem_.ranks(); ++r) memory.emplace_back(problem_, Rank{r});
  return list_schedule_while(workload_, limit, policy, [&](Rank rank, const Compute& compute) {
    PeakMemory& of_rank = memory[rank.index()];
    return !of_rank.take(compute) || of_rank.peak() <= *problem_.capacity();
  });
}

bool Seeds::add(const std::string& name, const Orders& orders) {
  return fits(problem_, orders) && add_fitting(name, orders);
}

bool Seeds::add_fitting(const std::string& name, const Orders& orders) {
  const Price price = pricing_.run(orders);
  constexpr int kUsual = LoweringOptions{}.extra_slots;
  if (pricing_.extra_slots() != kUsual && !fits(problem_, orders, pricing_.extra_slots())) return false;
  if (price.finishes()) seeds_.push_back({name, {orders, price}});
  return true;
}

std::vector<Seed> Seeds::best(std::size_t most) const {
  std::vector<const Seed*> sorted;
  for (const Seed& seed : seeds_) sorted.push_back(&seed);
  std::ranges::stable_sort(sorted, {}, &Seed::seconds);
  std::vector<Seed> best;
  for (const Seed* seed : sorted) {
    if (best.size() == most) break;
    if (best.empty() || cheaper(best.back(), *seed)) best.push_back(*seed);
  }
  return best;
}

/// `share` of the room a rank has beside what stands, its channels' spare slots, what is under way and what
/// the longest of its actions needs for itself.
KeepLimit Seeds::limit_of(double share) const {
  constexpr LoweringOptions usual;
  KeepLimit limit;
  limit.capacity.assign(to_size(problem_.ranks()), 0);
  std::vector<Bytes> fixed(limit.capacity.size());
  std::vector<Bytes> transient(limit.capacity.size());
  std::vector<std::int64_t> least(limit.capacity.size(), 0);
  std::vector<std::int64_t> most(limit.capacity.size(), 0);
  for (int s = 0; s < problem_.stages(); ++s) {
    const StageId stage{s};
    const StageCosts& c = problem_.costs(stage);
    const Bytes activation = payload_bytes(problem_.costs(), Payload::activation, stage);
    const Bytes gradient = payload_bytes(problem_.costs(), Payload::gradient, stage);
    // Recomputed: activations are there for the time of a recompute and a backward only, and of one
    // micro-batch more where the last is not.
    const Recompute setting = setting_of(problem_.recompute(), stage);
    Situation here = problem_.situation(stage);
    here.recomputed = setting != Recompute::none;
    using enum Moment;
    const MomentDeltas held = deltas(c, here);
    const Bytes activations = held.after({forward, activation_sent, recompute});
    const Bytes passing = here.recomputed ? activations * (setting == Recompute::all ? 1 : 2) : Bytes{};
    const Bytes slot = here.first ? Bytes{} : activation;
    const Bytes for_input = slot + held.after({load, forward, activation_sent});
    const Bytes for_weight =
        slot + gradient +
        held.after({load, forward, activation_sent, recompute, backward_input, gradient_sent});
    const bool keeps = c.output_kept && !here.recomputed;
    limit.forward.push_back(std::max<std::int64_t>(1, std::max(for_input, for_weight).value));
    limit.weight.push_back(std::max<std::int64_t>(1, for_weight.value));
    for (const Rank rank : problem_.placement().ranks[to_size(s)]) {
      const std::size_t r = rank.index();
      if (!here.first) fixed[r] += activation * (usual.extra_slots + usual.sends_in_flight);
      if (!here.last) fixed[r] += gradient * (usual.extra_slots + (keeps ? 0 : usual.sends_in_flight));
      transient[r] =
          std::max({transient[r], passing + c.forward_peak - activations, passing + c.backward_peak});
      least[r] += limit.forward.back();
      most[r] += limit.forward.back() * problem_.micro_batches();
    }
  }
  for (std::size_t r = 0; r < limit.capacity.size(); ++r) {
    limit.capacity[r] = most[r];
    if (!problem_.capacity()) continue;
    const Bytes room = *problem_.capacity() - standing_memory(problem_, Rank{r}) - fixed[r] - transient[r];
    limit.capacity[r] =
        std::clamp(static_cast<std::int64_t>(static_cast<double>(room.value) * share), least[r], most[r]);
  }
  return limit;
}

Orders orders_of(const ScheduleProgram& program) {
  Orders orders;
  for (const auto& list : program.ranks) {
    Order& order = orders.emplace_back();
    for (const Action& action : list) {
      if (is_compute(action.op) && action.op != Op::recompute)
        order.push_back({action.op, action.stage, action.micro_batch});
    }
  }
  return orders;
}

}  // namespace stagecraft::synthesis
