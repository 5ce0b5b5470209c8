#pragma once

// The first half of lowering: which of a rank's actions read which transfers and which they send, and how
// many each channel must hold at once. It does not depend on the number of slots; walk_rank.h lays waits,
// releases and sends over it.

#include "schedules/program/program.h"
#include "schedules/program/transfer_numbers.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <span>
#include <vector>

namespace stagecraft {

/// In place of a transfer's number (transfer_numbers.h).
inline constexpr std::uint32_t kNoTransfer = std::numeric_limits<std::uint32_t>::max();

/// A transfer that arrives at a rank, and the first and last of the rank's actions that read it.
struct Receive {
  std::uint32_t transfer = kNoTransfer;
  std::int32_t channel = 0;  ///< into RankTransfers::channels
  std::int32_t first = 0;
  std::int32_t last = 0;
  std::int32_t releases_before = 0;  ///< releases on the rank before its first reader
};

struct Channel {
  SlotInfo info;
  std::int32_t transfers = 0;
  std::int32_t held = 0;  ///< most transfers between first and last reader at once: fewer slots cannot do
  std::int32_t first_release = 0;  ///< into RankTransfers::releases

  /// As many as are held at once and `surplus`. A skip gets one more for each stage that it passes: so many
  /// micro-batches are on their way there through those stages.
  [[nodiscard]] std::int32_t slots_with(std::int32_t surplus) const {
    const std::int32_t passed =
        info.payload == Payload::loss ? 0 : std::abs(info.to.value - info.from.value) - 1;
    return held + passed + surplus;
  }
};

/// What one rank receives and sends, as found by TransferScan.
struct RankTransfers {
  /// What an action has to do with transfers.
  struct Touched {
    std::uint32_t reads_begin = 0;  ///< into `reads`
    std::uint32_t sends_begin = 0;  ///< into `sends`: what leaves right after it
    std::uint32_t ends_begin = 0;   ///< into `ends`: what its forward sent, if it did, goes away with it
  };

  std::vector<Receive> receives;  ///< in the order of their first readers
  std::vector<Channel> channels;  ///< in the order of their first receives
  /// Channel by channel: its n-th release is the rank's releases[first_release + n]-th, counted from 1.
  std::vector<std::int32_t> releases;
  std::vector<std::int32_t> reads;         ///< into `receives`, action by action
  std::vector<std::uint32_t> sends, ends;  ///< numbers of transfers, action by action
  std::vector<Touched> actions;            ///< one more than there are actions

  /// Receives that action `index` of the rank's list reads.
  [[nodiscard]] std::span<const std::int32_t> read_by(std::size_t index) const {
    return {reads.data() + actions[index].reads_begin, reads.data() + actions[index + 1].reads_begin};
  }
  [[nodiscard]] std::span<const std::uint32_t> sent_by(std::size_t index) const {
    return {sends.data() + actions[index].sends_begin, sends.data() + actions[index + 1].sends_begin};
  }
  [[nodiscard]] std::span<const std::uint32_t> ended_by(std::size_t index) const {
    return {ends.data() + actions[index].ends_begin, ends.data() + actions[index + 1].ends_begin};
  }
};

/// Scans lists of one program. Linear in their length.
class TransferScan {
 public:
  /// Keeps a reference to `header`.
  explicit TransferScan(const ProgramHeader& header);

  /// What `rank` receives and sends with this list. Allocates nothing that `transfers` has room for.
  void scan(Rank rank, std::span<const Action> list, RankTransfers& transfers);

 private:
  [[nodiscard]] bool is_within(const Action& action) const;
  [[nodiscard]] bool is_here(StageId stage, MicroBatch mb) const {
    return header_.placement.rank_of(stage, mb) == rank_;
  }
  /// Calls `visit` with the numbers of the program's skips that have that end at `stage`.
  template <class Visit>
  void each_skip(StageId Skip::*end, StageId stage, const Visit& visit) const {
    for (std::size_t k = 0; k < header_.skips.size(); ++k) {
      if (header_.skips[k].*end == stage) visit(k);
    }
  }
  void send(const Action& action);
  /// What its forward sent goes away.
  void end(const Action& action);
  void read(const Action& action);
  void read_losses(Group group);
  void note(std::size_t transfer, const SlotInfo& info);
  void count_held();

  const ProgramHeader& header_;
  TagNumbers numbers_;
  std::int32_t micro_batches_;
  StageId last_stage_;
  // Of the scan under way.
  Rank rank_;
  std::int32_t reporter_ = -1;  // the rank's place among the last stage's replicas; -1: none
  std::int32_t index_ = 0;      // of the action
  RankTransfers* out_ = nullptr;
  std::vector<std::int32_t> holding_, released_;  // per channel
  // By transfer: its receive, if that is one of this transfer. What else stands here is of earlier scans.
  std::vector<std::uint32_t> receive_of_;
};

}  // namespace stagecraft
