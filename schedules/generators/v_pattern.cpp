#include "schedules/generators/v_pattern.h"

#include <algorithm>
#include <array>
#include <optional>
#include <tuple>
#include <utility>

namespace stagecraft {
namespace {

constexpr int kPeriod = 6;  // three parts on each of two stages

/// When micro-batch 0's parts run on one rank: forward, input and weight gradient of its two stages.
struct Steps {
  std::array<int, 2> forward{};
  std::array<int, 2> input{};
  std::array<int, 2> weight{};
};

/// Pairs kept at once when micro-batches follow each other every kPeriod steps.
int kept(const Steps& steps) {
  int most = 0;
  for (int at = 0; at < kPeriod; ++at) {
    int now = 0;
    for (const std::size_t chunk : {0U, 1U}) {
      // At a late time: the micro-batches that have begun, less those that were over before.
      const int time = at + kPeriod * (steps.weight[chunk] + 1);
      now +=
          (time - steps.forward[chunk]) / kPeriod + 1 - (time - steps.weight[chunk] + kPeriod - 1) / kPeriod;
    }
    most = std::max(most, now);
  }
  return most;
}

/// The weight gradients of a rank into the two steps of the period that are free, so that least is kept;
/// nothing if two parts want one step.
std::optional<Steps> place_weights(Steps steps) {
  std::array<bool, kPeriod> taken{};
  for (const int at : {steps.forward[0], steps.forward[1], steps.input[0], steps.input[1]}) {
    bool& step = taken[static_cast<std::size_t>(at % kPeriod)];
    if (step) return std::nullopt;
    step = true;
  }
  std::vector<int> open;
  for (int at = 0; at < kPeriod; ++at) {
    if (!taken[static_cast<std::size_t>(at)]) open.push_back(at);
  }
  const auto next = [](int after, int residue) {
    return after + 1 + ((residue - after - 1) % kPeriod + kPeriod) % kPeriod;
  };
  Steps other = steps;
  steps.weight = {next(steps.input[0], open[0]), next(steps.input[1], open[1])};
  other.weight = {next(other.input[0], open[1]), next(other.input[1], open[0])};
  return kept(other) < kept(steps) ? other : steps;
}

/// The pattern on every rank. `wait` are steps more than needed at the three turns: forward to forward on the
/// last rank, forward to input gradient on the first, input gradient to input gradient on the last.
std::optional<std::vector<Steps>> pattern(int ranks, const HopSteps& hop, const std::array<int, 3>& wait,
                                          int capacity) {
  const int hops = ranks - 1;
  const int up = hop.forward_down * hops + 1 + wait[0];
  const int back = up + hop.forward_up * hops + 1 + wait[1];
  const int home = back + hop.backward_down * hops + 1 + wait[2];
  std::vector<Steps> all;
  for (int r = 0; r < ranks; ++r) {
    const Steps parts{.forward = {hop.forward_down * r, up + hop.forward_up * (hops - r)},
                      .input = {home + hop.backward_up * (hops - r), back + hop.backward_down * r}};
    const auto steps = place_weights(parts);
    if (!steps || kept(*steps) > capacity) return std::nullopt;
    all.push_back(*steps);
  }
  return all;
}

/// All micro-batches of a rank, each kPeriod steps after the one before.
std::vector<Compute> unroll(const Steps& steps, const VirtualStages& shape, int position, int replica,
                            int micro_batches) {
  std::vector<std::pair<int, Compute>> timed;
  for (int mb = replica; mb < micro_batches; mb += shape.width) {
    const int shift = kPeriod * (mb / shape.width);
    for (const int chunk : {0, 1}) {
      const auto c = static_cast<std::size_t>(chunk);
      const StageId stage = shape.stage(position, chunk);
      timed.push_back({shift + steps.forward[c], {Op::forward, stage, MicroBatch{mb}}});
      timed.push_back({shift + steps.input[c], {Op::backward_input, stage, MicroBatch{mb}}});
      timed.push_back({shift + steps.weight[c], {Op::backward_weight, stage, MicroBatch{mb}}});
    }
  }
  std::sort(timed.begin(), timed.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Compute> order;
  order.reserve(timed.size());
  for (const auto& [step, compute] : timed) order.push_back(compute);
  return order;
}

}  // namespace

std::vector<Orders> v_patterns(const ProgramHeader& header, const VirtualStages& shape,
                               const std::vector<HopSteps>& hops, int capacity) {
  std::vector<Orders> found;
  if (shape.virtual_stages != 2) return found;
  for (const HopSteps& hop : hops) {
    std::optional<std::vector<Steps>> soonest;
    for (int wait = 0; wait <= 3 * (kPeriod - 1) && !soonest; ++wait) {
      for (int first = 0; first <= std::min(wait, kPeriod - 1) && !soonest; ++first) {
        for (int second = 0; second <= std::min(wait - first, kPeriod - 1) && !soonest; ++second) {
          if (wait - first - second >= kPeriod) continue;
          soonest = pattern(shape.ranks, hop, {first, second, wait - first - second}, capacity);
        }
      }
    }
    if (!soonest) continue;
    Orders& orders = found.emplace_back(static_cast<std::size_t>(header.placement.world()));
    for (int position = 0; position < shape.ranks; ++position) {
      const auto at = static_cast<std::size_t>(position);
      for (int replica = 0; replica < shape.width; ++replica) {
        const Rank rank = header.placement.ranks[at][static_cast<std::size_t>(replica)];
        orders[rank.index()] = unroll((*soonest)[at], shape, position, replica, header.micro_batches());
      }
    }
  }
  return found;
}

ScheduleProgram v_program(const char* schedule, const ScheduleRequest& request,
                          const std::vector<HopSteps>& hops, int (*micro_batches)(int ranks)) {
  ProgramHeader header = make_header(schedule, SegmentKind::train, request);
  const VirtualStages shape = virtual_stages(header.placement, PlacementKind::v, schedule);
  const int most = shape.virtual_stages * micro_batches(shape.ranks);
  const Orders orders = best_orders(workload_of(request), stage_limit(header.placement, most),
                                    v_patterns(header, shape, hops, most));
  return synchronous_program(std::move(header), orders, request.clip);
}

}  // namespace stagecraft
