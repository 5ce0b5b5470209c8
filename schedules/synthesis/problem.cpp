#include "schedules/synthesis/problem.h"

#include "schedules/program/consecutive.h"

#include <algorithm>
#include <utility>

namespace stagecraft::synthesis {

Problem::Problem(const Placement& placement, int micro_batches, bool clip, const CostTable& costs,
                 std::optional<Bytes> capacity, RecomputeSettings recompute, std::vector<Rank> priced_as,
                 bool may_go_on, StageId gradient_from)
    : placement_(placement),
      costs_(costs),
      capacity_(capacity),
      recompute_(std::move(recompute)),
      priced_as_(std::move(priced_as)),
      clip_(clip),
      goes_on_(may_go_on && !clip && can_be_followed(placement, micro_batches)),
      gradient_from_(gradient_from),
      micro_batches_(micro_batches),
      world_(placement.world()),
      replicas_of_rank_(to_size(world_)) {
  validate_settings(recompute_, stages());
  for (const StageReplica& at : stage_replicas(placement_, micro_batches)) {
    if (at.replica == 0) first_replica_.push_back(replicas_.size());
    const StageCosts& c = costs_.stages[at.stage.index()];
    const double speed = costs_.speed_of(priced(at.rank));
    replicas_of_rank_[at.rank.index()].push_back(replicas_.size());
    replicas_.push_back({at, c.forward.value / speed, (c.backward_input + c.backward_weight).value / speed,
                         c.backward_input.value / speed, c.backward_weight.value / speed,
                         c.step.value / speed});
  }
  find_memory();
}

void Problem::find_memory() {
  for (int s = 0; s < stages(); ++s) {
    const StageId stage{s};
    auto& all = memory_.emplace_back();
    for (std::size_t i = 0; i < all.size(); ++i) {
      Situation& here = all[i].here = situation(stage);
      here.recomputed = (i & 1U) != 0;
      here.from_here = (i & 2U) != 0;
      here.to_here = (i & 4U) != 0;
      all[i].deltas = deltas(costs(stage), here);
    }
    for (int i = 0; i < micro_batches_; ++i) {
      const MicroBatch mb{i};
      const bool from_here = s > 0 && hand_off(StageId{s - 1}, stage, mb);
      const bool to_here = stage < last_stage() && hand_off(stage, StageId{s + 1}, mb);
      situation_.push_back(static_cast<std::uint8_t>((recomputed(stage, mb) ? 1 : 0) | (from_here ? 2 : 0) |
                                                     (to_here ? 4 : 0)));
    }
  }
}

double Problem::seconds(const Compute& compute) const {
  const TimedReplica& at = replica(compute.stage, compute.micro_batch);
  switch (compute.op) {
    case Op::forward:
      return at.forward;
    case Op::backward:
      return at.backward;
    case Op::backward_input:
      return at.input_part;
    default:
      return at.weight_part;
  }
}

double Problem::transfer_seconds(int from, StageId to, MicroBatch micro_batch, Bytes bytes) const {
  const Rank sender = replica(StageId{from}, micro_batch).rank;
  const Rank receiver = replica(to, micro_batch).rank;
  return sender == receiver ? 0 : costs_.network.between(priced(sender), priced(receiver)).time(bytes).value;
}

double Problem::loss_seconds(Rank from) const {
  return costs_.network.between(priced(from), priced(printing_rank())).time(costs_.loss).value;
}

std::size_t Problem::computations() const { return 3 * to_size(stages()) * to_size(micro_batches_); }

bool well_formed(const Problem& problem, const Orders& orders) {
  if (orders.size() != to_size(problem.ranks())) return false;
  const auto micro_batches = to_size(problem.micro_batches());
  const std::size_t all = to_size(problem.stages()) * micro_batches;
  std::vector<bool> forwards(all), inputs(all), weights(all);
  for (std::size_t r = 0; r < orders.size(); ++r) {
    std::vector<int> next(problem.replicas().size() * 3, 0);
    for (const Compute& c : orders[r]) {
      if (c.stage.value < 0 || c.stage.value >= problem.stages()) return false;
      if (c.micro_batch.value < 0 || c.micro_batch.index() >= micro_batches) return false;
      const std::size_t replica = problem.replica_of(c.stage, c.micro_batch);
      if (problem.replicas()[replica].rank != Rank{r}) return false;
      const int k = c.micro_batch.value / problem.placement().replicas(c.stage);
      const std::size_t here = c.stage.index() * micro_batches + c.micro_batch.index();
      const auto take = [&](std::size_t part, std::vector<bool>& done) {
        done[here] = true;
        return next[3 * replica + part]++ == k;
      };
      /// The neighbour's part on the same rank comes first.
      const auto behind = [&](int stage, const std::vector<bool>& done) {
        if (stage < 0 || stage >= problem.stages()) return true;
        if (!problem.hand_off(c.stage, StageId{stage}, c.micro_batch)) return true;
        return static_cast<bool>(done[to_size(stage) * micro_batches + c.micro_batch.index()]);
      };
      switch (c.op) {
        case Op::forward:
          if (!behind(c.stage.value - 1, forwards) || !take(0, forwards)) return false;
          break;
        case Op::backward:
        case Op::backward_input:
          if (!forwards[here] || !behind(c.stage.value + 1, inputs) || !take(1, inputs)) return false;
          if (c.op == Op::backward && !take(2, weights)) return false;
          break;
        case Op::backward_weight:
          if (!inputs[here] || !take(2, weights)) return false;
          break;
        default:
          return false;
      }
    }
  }
  const auto complete = [](const std::vector<bool>& done) {
    return std::find(done.begin(), done.end(), false) == done.end();
  };
  return complete(forwards) && complete(inputs) && complete(weights);
}

}  // namespace stagecraft::synthesis
