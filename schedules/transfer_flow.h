#pragma once

// Of what lowering lays out over a schedule program, what decides when ranks go on: computations, sends and
// waits, and where slots become free. It does not depend on the number of slots. Whether a program finishes
// with so many (slot_flow.h) and how long it then takes (unit_time.h) is found by running this.

#include "schedules/lowering_scan.h"
#include "schedules/tag_numbers.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

namespace stagecraft {

struct FlowEvent {
  enum class Kind : std::uint8_t { compute, send, wait, wait_send, meet };
  Kind kind;
  std::uint32_t number;  ///< ticks (unit_time.h); of the tag; of the collective
};

/// Of one rank.
struct FlowLane {
  std::vector<FlowEvent> events;
  std::vector<std::uint32_t> release_at;  ///< per release, in order: the events before it
  std::size_t drain = 0;                  ///< from here on the rank only waits for the end of its sends
};

class TransferFlow {
 public:
  /// The ends of a tag; -1: there is none, nobody waits for it.
  struct Ends {
    std::int32_t receiver = -1;
    std::int32_t receive = -1;  ///< into the receiver's scan
    std::int32_t sender = -1;   ///< of what is sent twice the first
  };

  /// `scans` has an entry a rank.
  TransferFlow(const ScheduleProgram& program, const std::vector<RankScan>& scans, int sends_in_flight);

  [[nodiscard]] const std::vector<FlowLane>& lanes() const { return lanes_; }  ///< by rank
  [[nodiscard]] const TagNumbers& numbers() const { return numbers_; }
  [[nodiscard]] const std::vector<Ends>& ends() const { return ends_; }  ///< by tag number
  /// How many ranks come to each collective.
  [[nodiscard]] const std::vector<std::int32_t>& members() const { return members_; }

 private:
  using Collectives =
      std::map<std::tuple<Op, StageId, Group, int>, std::uint32_t>;  // the last: the how manieth

  void add_lane(const ScheduleProgram& program, const RankScan& scan, Rank rank, int sends_in_flight,
                Collectives& collectives);

  TagNumbers numbers_;
  std::vector<FlowLane> lanes_;
  std::vector<Ends> ends_;
  std::vector<std::int32_t> members_;
};

}  // namespace stagecraft
