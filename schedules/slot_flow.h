#pragma once

// Whether a schedule program finishes with so many slots, without lowering it: only its transfer flow is run.
// Says of every number of slots what the dependency graph of the lowered program would (a test holds the two
// together), in a fraction of its time.

#include "schedules/lowering_scan.h"
#include "schedules/post_plan.h"
#include "schedules/transfer_flow.h"
#include "schedules/transport_rules.h"

#include <cstdint>
#include <utility>
#include <vector>

namespace stagecraft {

/// By rank and channel (RankScan::channels).
using SlotCounts = std::vector<std::vector<std::int32_t>>;

class SlotFlow {
 public:
  /// All but `costs` must outlive this. `flow` and `orders` are made of `program` and `scans`.
  SlotFlow(const ScheduleProgram& program, const std::vector<RankScan>& scans, const TransferFlow& flow,
           const std::vector<PostOrder>& orders, const TransportRules& rules, const CostTable* costs);

  [[nodiscard]] bool finishes(const SlotCounts& slots) const;

 private:
  class Run;

  void fill_buffers(const ScheduleProgram& program, const CostTable* costs);

  const std::vector<RankScan>& scans_;
  const TransferFlow& flow_;
  const std::vector<PostOrder>& orders_;
  TransportRules rules_;
  /// Eager only: by tag number, its part of the tags whose posts its send waits for.
  std::vector<std::pair<std::size_t, std::size_t>> room_of_;
  std::vector<std::int32_t> room_;
};

}  // namespace stagecraft
