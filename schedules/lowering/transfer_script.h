#pragma once

// What the ranks of a program do that other ranks can observe: computations, sends, waits and slot releases,
// as lowering lays them out. It does not depend on the number of slots. Running it (transfer_run.h) shows
// whether a program finishes with given slots, and how long it takes.

#include "schedules/lowering/receives.h"
#include "schedules/lowering/walk_rank.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <tuple>
#include <vector>

namespace stagecraft {

struct TransferEvent {
  enum class Kind : std::uint8_t { compute, wait_receive, wait_send, release, start_send, meet };
  Kind kind;
  Op op = Op::forward;        ///< of a computation
  std::uint32_t operand = 0;  ///< of waits and sends the transfer's number, of meet the collective
};

/// Lists are laid in rank order the first time. Later any rank's may be laid again, with as many receives: a
/// search that changes one rank's order lays that rank alone.
class TransferScript {
 public:
  /// Who sends and who receives a transfer; -1: nobody. Of what is sent twice the first, of what two
  /// ranks receive the last.
  struct Ends {
    std::int32_t sender = -1;
    std::int32_t receiver = -1;
  };

  /// Keeps a reference to `header`.
  TransferScript(const ProgramHeader& header, int sends_in_flight);
  /// Of a whole program, which must outlive this.
  TransferScript(const ScheduleProgram& program, int sends_in_flight);

  /// Linear in the list's length; allocates where the list is longer than all before.
  void lay(Rank rank, std::span<const Action> list);
  /// As it was before the rank was laid last; that again then. It was laid twice at least.
  void swap_back(Rank rank);

  [[nodiscard]] const ProgramHeader& header() const { return header_; }
  [[nodiscard]] const TagNumbers& numbers() const { return numbers_; }
  [[nodiscard]] std::size_t ranks() const { return lanes_.size(); }
  [[nodiscard]] const RankTransfers& transfers(std::size_t rank) const { return lanes_[rank].transfers; }
  [[nodiscard]] const std::vector<TransferEvent>& events(std::size_t rank) const {
    return lanes_[rank].events;
  }
  /// From this event on the rank only waits for the end of its sends.
  [[nodiscard]] std::size_t drain(std::size_t rank) const { return lanes_[rank].drain; }
  /// Another number each time that the rank is laid; 0: never was.
  [[nodiscard]] std::uint32_t laid(std::size_t rank) const { return lanes_[rank].laid; }
  /// Releases on the ranks before this one; of one past the last rank: all.
  [[nodiscard]] std::size_t first_release(std::size_t rank) const { return first_release_[rank]; }
  [[nodiscard]] const Ends& ends(std::uint32_t transfer) const { return ends_[transfer]; }
  /// How many ranks come to each collective.
  [[nodiscard]] const std::vector<std::int32_t>& members() const { return members_; }

 private:
  class EventSink;
  struct Lane {
    RankTransfers transfers;
    std::vector<TransferEvent> events;
    std::size_t drain = 0;
    std::uint32_t laid = 0;
  };
  using Collective = std::tuple<Op, std::int32_t, Group,
                                int>;  // of a stage or tied weight; the last: its occurrence on the rank

  const ProgramHeader& header_;
  TagNumbers numbers_;
  TransferScan scan_;
  SendWindow window_;
  std::vector<Lane> lanes_, before_;
  std::uint32_t times_laid_ = 0;
  std::vector<std::size_t> first_release_;
  std::vector<Ends> ends_;  // by transfer
  std::map<Collective, std::uint32_t> collectives_;
  std::vector<std::int32_t> members_;
};

}  // namespace stagecraft
