#pragma once

// Where every rank's idle time goes: hooks that follow each wait to its cause while the run goes on.
//
// At any moment of a wait the rank waits for something. If that is under way, it is the cause. If it has not
// been started, the cause is whatever its starter does at that moment: work, or its own cause if it waits
// too, which is known by then, since causes come before effects in the order of the run. So every rank's
// past is kept as a row of pieces with one cause each, and a wait for another rank copies the pieces of that
// rank that lie within the wait. Every link has such a row too, for those who wait behind a transfer.
//
// A transfer that lacked a slot ends later than it would have. Whoever waits for it while the slot is lacking
// waits for memory; and so does whoever waits for it later, for as long as the delay was, at the wait's end.

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
        ranks_(ranks),
        lanes_(code.lanes),
        lost_(ranks),
        sent_(code.transfer_route.size()),
        shared_link_free_(prices.shared_link_count) {}

  void computed(const Instruction& i, double begin, double end);
  void sent(const Instruction& i, const Sending& sending);
  void waited(const Instruction& i, double begin, double end);
  void reduced(const Instruction& i, double begin, double joined, Rank latest, double end);
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
  using Row = std::vector<Piece>;

  struct Sent {
    double started, begin, end;
    double free;  ///< when it would have begun had it not lacked a slot
  };

  static void append(Row& row, double until, Cause cause);
  void lose(std::size_t rank, double begin, double end, Cause cause);
  /// `rank` waits from begin to end for what `row` tells; a transfer there counts as `moving`.
  void follow(std::size_t rank, double begin, double end, const Row& row, Cause moving = transfer);

  const Instructions& code_;
  const Prices& prices_;
  std::vector<Row> ranks_;  // without gaps from 0 on
  std::vector<Row> lanes_;  // while a transfer is to be carried out; between them nobody asks
  std::vector<Causes> lost_;
  std::vector<Sent> sent_;  // per transfer
  std::vector<double> shared_link_free_;
};

}  // namespace stagecraft::simulator
