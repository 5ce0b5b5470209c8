#pragma once

// How many receive slots each channel of a program gets: few enough to save memory, enough to finish and not
// to slow the schedule down. Any number is tried on the program's transfer flow, none by lowering.

#include "schedules/lowering.h"
#include "schedules/lowering_scan.h"
#include "schedules/post_plan.h"
#include "schedules/slot_flow.h"
#include "schedules/transfer_flow.h"

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

namespace stagecraft {

/// How many slots a channel gets, if it has as many transfers.
struct SlotRule {
  std::int32_t uniform = 0;  ///< of every boundary; 0: what it holds at once, and `surplus`
  std::int32_t surplus = 0;
  std::int32_t losses = 0;  ///< of losses, beside the usual ones

  [[nodiscard]] std::int32_t slots_of(const Channel& channel, std::int32_t stages) const;
};

class SlotChoice {
 public:
  /// `program` must outlive this.
  SlotChoice(const ScheduleProgram& program, const LoweringOptions& options);
  SlotChoice(const SlotChoice&) = delete;
  SlotChoice& operator=(const SlotChoice&) = delete;

  [[nodiscard]] const std::vector<RankScan>& scans() const { return scans_; }
  [[nodiscard]] const std::vector<PostOrder>& orders() const { return orders_; }

  [[nodiscard]] SlotCounts counts(const SlotRule& rule) const;
  /// Throws RefusedError where rank `r` with so many slots reads a receive before it can be posted.
  void require_posts(std::size_t r, const std::vector<std::int32_t>& counts) const;

  [[nodiscard]] bool works(const SlotCounts& counts) const { return flow_.finishes(counts); }
  [[nodiscard]] bool works(const SlotRule& rule) const { return works(counts(rule)); }

  /// The least value of `part`, from `low` on, with which `rule` works, as it must now. More slots only ever
  /// help, and most often the fewest do.
  [[nodiscard]] std::int32_t least(SlotRule rule, std::int32_t SlotRule::*part, std::int32_t low) const;
  /// Of each channel on its own; some number of slots must work.
  [[nodiscard]] LeastSlots least_of_each() const;
  /// The least surplus, from `low` on, with which the receive slots do not slow the schedule down.
  [[nodiscard]] std::int32_t unhurried_surplus(std::int32_t low) const;

  [[nodiscard]] std::int32_t most_transfers() const { return most_transfers_; }  ///< of any boundary
  [[nodiscard]] std::int32_t most_losses() const { return most_losses_; }
  [[nodiscard]] std::int32_t most_held() const { return most_held_; }
  [[nodiscard]] const std::string& most_held_by() const { return most_held_by_; }

 private:
  using ChannelName = std::tuple<Rank, Payload, StageId, StageId>;
  static ChannelName name_of(Rank rank, const SlotInfo& info) {
    return {rank, info.payload, info.from, info.to};
  }

  /// Brings a range of channels down to what they read at once, if the program still finishes; as it was if
  /// not.
  bool set(std::vector<ChannelSlots>& channels, std::size_t begin, std::size_t end) const;
  void lower_range(std::vector<ChannelSlots>& channels, std::size_t begin, std::size_t end) const;
  [[nodiscard]] bool works(const std::vector<ChannelSlots>& channels) const;

  const ScheduleProgram& program_;
  std::vector<RankScan> scans_;
  std::vector<PostOrder> orders_;
  TransferFlow transfers_;
  SlotFlow flow_;
  std::map<ChannelName, int> fixed_;
  std::int32_t most_transfers_ = 0;
  std::int32_t most_losses_ = 0;
  std::int32_t most_held_ = 0;
  std::string most_held_by_;
};

}  // namespace stagecraft
