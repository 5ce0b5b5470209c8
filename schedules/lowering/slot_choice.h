#pragma once

// How many receive slots each channel of a program gets: few enough to save memory, enough to finish and not
// to slow the schedule down. Any number is tried by running the program's transfer script, none by lowering.

#include "schedules/lowering/lowering.h"
#include "schedules/lowering/posting_order.h"
#include "schedules/lowering/transfer_run.h"
#include "schedules/lowering/transfer_script.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace stagecraft {

/// How many slots each channel gets, if it has as many transfers.
struct SlotRule {
  std::int32_t uniform = 0;  ///< of every boundary; 0: what it holds at once, and `surplus`
  std::int32_t surplus = 0;
  std::int32_t losses = 0;  ///< of losses, beside the usual ones

  [[nodiscard]] std::int32_t slots_of(const Channel& channel, std::int32_t stages) const;
};

/// Of any boundary channel: more slots are of no use.
[[nodiscard]] std::int32_t most_transfers(const TransferScript& script);

/// The least number of slots beyond those read at once, from `low` on, with which the receive slots of
/// boundary channels do not slow the schedule down, in units of time: before anybody knows what a stage
/// costs. Of the clock's script as it is laid now; `low` where that finishes with no number. Most often one
/// run.
[[nodiscard]] std::int32_t unhurried_surplus(TickClock& clock, std::int32_t low);

class SlotChoice {
 public:
  /// `program` must outlive this.
  SlotChoice(const ScheduleProgram& program, const LoweringOptions& options);
  SlotChoice(const SlotChoice&) = delete;
  SlotChoice& operator=(const SlotChoice&) = delete;

  [[nodiscard]] const TransferScript& script() const { return script_; }
  [[nodiscard]] const std::vector<PostOrder>& orders() const { return orders_; }

  [[nodiscard]] SlotCounts counts(const SlotRule& rule) const;
  /// Throws RefusedError where rank `r` with so many slots reads a receive before it can be posted.
  void require_posts(std::size_t r, const std::vector<std::int32_t>& counts) const;

  [[nodiscard]] bool works(const SlotCounts& counts) { return run_.run(orders_, counts); }
  [[nodiscard]] bool works(const SlotRule& rule) { return works(counts(rule)); }

  /// The least value of `part`, from `low` on, with which `rule` works, as it must now. More slots only ever
  /// help, and most often the fewest do.
  [[nodiscard]] std::int32_t least(SlotRule rule, std::int32_t SlotRule::*part, std::int32_t low);
  /// Of each channel on its own; some number of slots must work.
  [[nodiscard]] LeastSlots least_of_each();

  [[nodiscard]] std::int32_t most_transfers() const { return stagecraft::most_transfers(script_); }
  [[nodiscard]] std::int32_t most_losses() const { return most_losses_; }
  [[nodiscard]] std::int32_t most_held() const { return most_held_; }
  [[nodiscard]] const std::string& most_held_by() const { return most_held_by_; }

 private:
  /// Brings a range of channels down to what they read at once, if the program still finishes; as it was if
  /// not.
  bool set(std::vector<ChannelSlots>& channels, std::size_t begin, std::size_t end);
  void lower_range(std::vector<ChannelSlots>& channels, std::size_t begin, std::size_t end);
  [[nodiscard]] bool works(const std::vector<ChannelSlots>& channels);

  const ScheduleProgram& program_;
  TransferScript script_;
  std::vector<PostOrder> orders_;
  NoClock run_;
  std::map<std::pair<Rank, ChannelKey>, int> fixed_;
  std::int32_t most_losses_ = 0;
  std::int32_t most_held_ = 0;
  std::string most_held_by_;
};

}  // namespace stagecraft
