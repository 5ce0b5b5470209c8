#pragma once

// What decoders look up for every action, looked up once for each replica: its times, its neighbours' ranks and the
// hops to them.

#include "schedules/list_scheduling/list_scheduler.h"

#include <cstddef>
#include <span>
#include <vector>

namespace stagecraft {

/// Points into the workload that it was made of.
struct LinkedReplica : StageReplica {
  /// The stage before or behind; no ranks where there is none.
  struct Neighbour {
    StageId stage{};
    std::span<const Rank> ranks{};
    const Workload::Hop* hops = nullptr;  ///< to the first of its replicas
    std::size_t stride = 1;               ///< from there to the next one's
    std::size_t first = 0;                ///< Workload::at of its micro-batch 0

    [[nodiscard]] std::size_t replica(MicroBatch micro_batch) const {
      return ranks.size() == 1 ? 0 : micro_batch.index() % ranks.size();
    }
  };
  std::size_t first = 0;  ///< Workload::at of micro-batch 0
  const Workload::Times* times = nullptr;
  Neighbour previous{}, next{};

  /// Workload::duration, recomputes apart.
  [[nodiscard]] Ticks duration(Op op) const {
    return op == Op::forward ? times->forward : op == Op::backward_weight ? times->weight : times->input;
  }
};

/// In the order of stage_replicas().
[[nodiscard]] inline std::vector<LinkedReplica> linked_replicas(const Workload& workload) {
  const auto& stages = workload.placement.ranks;
  const auto neighbour = [&](std::size_t stage, const std::vector<Workload::Hop>& hops, std::size_t from,
                             std::size_t stride) {
    const StageId id{stage};
    return LinkedReplica::Neighbour{id, stages[stage], &hops[from], stride, workload.at(id, MicroBatch{0})};
  };
  std::vector<LinkedReplica> all;
  for (const StageReplica& at : stage_replicas(workload.placement, workload.micro_batches)) {
    const std::size_t stage = at.stage.index();
    const auto own = to_size(at.replica);
    LinkedReplica& linked = all.emplace_back(LinkedReplica{at});
    linked.first = workload.at(at.stage, MicroBatch{0});
    linked.times = &workload.times[stage][own];
    if (stage > 0)
      linked.previous = neighbour(stage - 1, workload.gradient[stage - 1], own, stages[stage].size());
    if (stage + 1 < stages.size())
      linked.next = neighbour(stage + 1, workload.activation[stage], own * stages[stage + 1].size(), 1);
  }
  return all;
}

}  // namespace stagecraft
