#pragma once

// Where every rank's idle time goes: hooks that follow each wait to its cause while the run goes on.
//
// At any moment of a wait a rank waits for something. If that is under way, it is the cause. If it has not
// been started, the cause is whatever its starter does at that moment: work, or its own cause if it waits
// too, which is known by then, since causes come before effects in the order of the run. So every rank's
// past is kept as a row of pieces with one cause each, and a wait for another rank copies the pieces of that
// rank that lie within the wait.

#include "schedules/simulator/pass.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace stagecraft::simulator {

enum Cause : std::uint8_t { work, transfer, blocked_send, memory, barrier, cause_count };

using Causes = std::array<double, cause_count>;  ///< seconds

class LostTimeHooks : public Hooks {
 public:
  LostTimeHooks(const Instructions& code, const Prices& prices, std::size_t ranks)
      : code_(code),
        prices_(prices),
        pieces_(ranks),
        lost_(ranks),
        sendings_(code.transfer_route.size()),
        lane_free_(code.lanes),
        card_free_(prices.card_count) {}

  void computed(const Instruction& i, double begin, double end);
  void sent(const Instruction& i, const Sending& sending);
  void waited(const Instruction& i, double begin, double end);
  void met(const Collective& collective, const std::vector<double>& clock, double last, double end);

  /// Ends the run: all ranks wait for the one that is done last. Returns the lost time of each by cause,
  /// `work` being other ranks' work.
  [[nodiscard]] const std::vector<Causes>& finish(const std::vector<double>& clock);

 private:
  /// From the end of the piece before it.
  struct Piece {
    double end;
    Cause cause;
  };

  /// What is remembered of a transfer: when it was started, and when it would have ended had this and those
  /// before it on its link and cards never lacked a slot.
  struct Sent {
    double started, end_with_slot;
  };

  void append(std::size_t rank, double begin, double end, Cause cause);
  void lose(std::size_t rank, double begin, double end, Cause cause);
  /// `rank` waits from begin to end for what `other` does in that time.
  void follow(std::size_t rank, double begin, double end, std::size_t other);

  const Instructions& code_;
  const Prices& prices_;
  std::vector<std::vector<Piece>> pieces_;  // per rank, without gaps from 0 on
  std::vector<Causes> lost_;                // per rank
  std::vector<Sent> sendings_;              // per transfer
  std::vector<double> lane_free_;           // had no slot been lacking
  std::vector<double> card_free_;           // likewise
};

}  // namespace stagecraft::simulator
