#pragma once

// Schedules over virtual stages that send micro-batches round the loop in rounds: a rank takes a round's
// micro-batches through its first stage, then through its second, and so on; backwards the other way round.

#include "schedules/generators/assembly.h"

#include <functional>
#include <vector>

namespace stagecraft {

/// Which of a rank's stages a forward is on, with which own micro-batch; the backward that comes as late as
/// that among the backwards is on stage virtual_stages - 1 - chunk.
struct Turn {
  int chunk;
  int micro_batch;
};

/// One rank's list, to be filled.
struct LoopedRank {
  const VirtualStages& shape;
  const std::vector<Turn>& turns;
  const std::vector<int>& rounds;
  int position;
  int replica;
  std::vector<Compute>& list;

  /// Forwards on the rank, and as many backwards.
  [[nodiscard]] int total() const { return static_cast<int>(turns.size()); }
  /// The k-th forward, backward or part of one; nothing where there is no k-th.
  void add(Op op, int k);
};

/// Divides a replica's `count` micro-batches into rounds.
using DivideRounds = std::function<std::vector<int>(int count, int ranks)>;

/// Lets `fill` say the order of every rank of the loop.
[[nodiscard]] Orders looped_orders(const ProgramHeader& header, const VirtualStages& shape,
                                   const DivideRounds& rounds, const std::function<void(LoopedRank&)>& fill);

/// The program of these orders.
[[nodiscard]] ScheduleProgram looped_program(const std::string& schedule, const ScheduleRequest& request,
                                             const DivideRounds& rounds,
                                             const std::function<void(LoopedRank&)>& fill);

/// `count` micro-batches in rounds of at least `ranks` (fewer only where there are fewer), as equal as can
/// be, longer ones first: no later round then waits for an earlier one's backwards.
[[nodiscard]] std::vector<int> rounds_of(int count, int ranks);

}  // namespace stagecraft
