#pragma once

// Whether a schedule program finishes with so many slots, without lowering it: of what lowering would lay out
// only the actions that wait, and those that others wait for, are run. Says of every number of slots what the
// dependency graph of the lowered program would (a test holds the two together), in a fraction of its time.

#include "schedules/lowering_scan.h"
#include "schedules/post_plan.h"
#include "schedules/tag_numbers.h"
#include "schedules/transport_rules.h"

#include <cstdint>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

namespace stagecraft {

/// By rank and channel (RankScan::channels).
using SlotCounts = std::vector<std::vector<std::int32_t>>;

class SlotFlow {
 public:
  /// `scans` and `orders` must outlive this.
  SlotFlow(const ScheduleProgram& program, const std::vector<RankScan>& scans,
           const std::vector<PostOrder>& orders, int sends_in_flight, const TransportRules& rules,
           const CostTable* costs);

  [[nodiscard]] bool finishes(const SlotCounts& slots) const;

 private:
  struct Event {
    enum class Kind : std::uint8_t { send, wait, wait_send, meet };
    Kind kind;
    std::uint32_t number;  ///< of the tag; of the collective
  };
  struct Lane {
    std::vector<Event> events;
    std::vector<std::uint32_t> release_at;  ///< per release, counted from 1: the events before it
  };
  /// The other ends of a tag; -1: there is none, nobody waits for it.
  struct Ends {
    std::int32_t receiver = -1;
    std::int32_t receive = -1;  ///< into the receiver's scan
    std::int32_t sender = -1;
  };
  class Run;

  using Collectives =
      std::map<std::tuple<Op, StageId, Group, int>, std::uint32_t>;  // the last: the how manieth

  void add_lane(const ScheduleProgram& program, Rank rank, int sends_in_flight, Collectives& collectives);
  void fill_buffers(const ScheduleProgram& program, const CostTable* costs);

  const std::vector<RankScan>& scans_;
  const std::vector<PostOrder>& orders_;
  TransportRules rules_;
  TagNumbers numbers_;
  std::vector<Lane> lanes_;
  std::vector<Ends> ends_;             // by tag number
  std::vector<std::int32_t> members_;  // per collective
  /// Eager only: by tag number, its part of the tags whose posts its send waits for.
  std::vector<std::pair<std::size_t, std::size_t>> room_of_;
  std::vector<std::int32_t> room_;
};

}  // namespace stagecraft
