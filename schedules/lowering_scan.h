#pragma once

// The first half of lowering: which action of a rank reads which transfer, and how many each channel must
// hold at once. It does not depend on the number of slots; lowering.cpp lays slots over it.

#include "schedules/program.h"

#include <cstdint>
#include <span>
#include <vector>

namespace stagecraft {

/// A transfer that arrives at a rank, and the first and last of the rank's actions that read it.
struct Receive {
  Tag tag;
  std::int32_t channel = 0;  ///< into RankScan::channels
  std::int32_t first = 0;
  std::int32_t last = 0;
  std::int32_t releases_before = 0;  ///< releases on the rank before its first reader
};

struct Channel {
  SlotInfo info;
  std::int32_t transfers = 0;
  std::int32_t held = 0;  ///< most transfers between first and last reader at once: fewer slots cannot do
  std::vector<std::int32_t>
      releases{};  ///< the n-th of the channel is the rank's releases[n]-th, counted from 1
};

/// What one rank receives. `receives` are in the order of their first readers.
struct RankScan {
  std::vector<Receive> receives;
  std::vector<Channel> channels;  ///< in the order of their first receives

  /// Receives that action `index` of the rank's list reads.
  [[nodiscard]] std::span<const std::int32_t> reads(std::size_t index) const {
    return {reads_.data() + begin_[index], reads_.data() + begin_[index + 1]};
  }

  /// Whether a transfer leaves after action `index`, and which one it is.
  [[nodiscard]] bool sends(std::size_t index) const { return sends_[index]; }
  [[nodiscard]] Tag sent_by(const Action& action) const;

  std::vector<std::int32_t> reads_;
  std::vector<std::uint32_t> begin_;  // per action, and the end
  std::vector<bool> sends_;           // per action
  StageId last_stage_{};
  std::int32_t reporter_ = -1;  // the rank's place among the last stage's replicas; -1: none
};

[[nodiscard]] RankScan scan_rank(const ScheduleProgram& program, Rank rank);

[[nodiscard]] std::vector<RankScan> scan_ranks(const ScheduleProgram& program);

/// The activation that a backward's forward sent, if it did: with the backward it goes away.
[[nodiscard]] constexpr bool ends_send(const Action& action) {
  return action.op == Op::backward || action.op == Op::backward_input;
}
[[nodiscard]] constexpr Tag activation_after(const Action& action) {
  return {.payload = Payload::activation,
          .from = action.stage,
          .to = StageId{action.stage.value + 1},
          .micro_batch = action.micro_batch};
}

}  // namespace stagecraft
