#pragma once

// How early each computation can begin and how much must follow it, whatever the order.
//
// Computations need each other: the forward of a micro-batch that of the stage before and the transfer
// between, the input part that of the stage behind, likewise, the weight part the input part, and each part
// of a stage that of the micro-batch before. Where memory is counted, what MemoryNeeds says is needed,
// too. A head is the longest path of such needs up to a computation; a tail the longest on from it, with the
// steps.
//
// Where ranks go on from step to step (Problem::goes_on), only what leads to the end of the first stage's ranks makes a
// tail, which then bounds the time from one step to the next: heads begin where those ranks begin. What leads to no
// such end has the tail kNothing.
//
// A rank does one thing at a time: of all that must be over on a rank before a computation there, its head is
// no earlier than the end when done as soon as it can be (earliest_end), and the other way round for tails.
// So a path goes through a rank's work as well as through its needs.

#include "schedules/synthesis/one_machine.h"
#include "schedules/synthesis/rank_memory.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace stagecraft::synthesis {

/// What must be over on a rank before a computation can begin there, because there would not be the memory for
/// both. A stage's parts go in micro-batch order, so "so many are held at most" says which: with room for k
/// micro-batches the forward of number n waits for the input part of number n - k. These needs are like those
/// of a stage for another's results, and hold of every order that fits.
///
/// Of one replica, by the own micro-batch's number.
struct MemoryNeeds {
  std::vector<int> inputs_before_forward;   ///< input parts that must be over, none behind its own
  std::vector<int> weights_before_forward;  ///< weight parts, likewise
  std::vector<int> weights_before_input;    ///< likewise before an input part
};

class HeadsAndTails {
 public:
  static constexpr double kNothing = -std::numeric_limits<double>::infinity();
  enum class Part : std::uint8_t { forward, input, weight };
  enum class Memory : bool { unlimited, counted };

  /// Keeps a reference to `problem`.
  HeadsAndTails(const Problem& problem, Memory memory);

  /// Of a stage on the rank that has the micro-batch.
  [[nodiscard]] const Job& job(Part part, StageId stage, MicroBatch micro_batch) const {
    return jobs_[to_size(part)][stage.index() * micro_batches_ + micro_batch.index()];
  }
  [[nodiscard]] std::vector<Job> jobs_of(Rank rank) const;

 private:
  struct Place {
    std::size_t replica;
    int number;
  };

  void end_with_first_stage();
  void find_needs(Memory memory);
  void find_heads();
  void find_tails();
  [[nodiscard]] Job& at(Part part, StageId stage, MicroBatch mb) {
    return jobs_[to_size(part)][stage.index() * micro_batches_ + mb.index()];
  }
  [[nodiscard]] const Job& job(Part part, const TimedReplica& replica, int number) const {
    return job(part, replica.stage, replica.micro_batch(number));
  }
  [[nodiscard]] Place place_of(int stage, MicroBatch mb) const;
  [[nodiscard]] RankCounts before(Part part, const Place& place) const;
  [[nodiscard]] bool needed(Part part, const Place& place, Part by, const Place& user) const;
  void raise_head(Part part, const Place& place);
  void raise_tail(Part part, const Place& place);

  static constexpr std::array kParts{Part::forward, Part::input, Part::weight};

  const Problem& problem_;
  std::size_t micro_batches_;
  std::array<std::vector<Job>, 3> jobs_;  // per part: by stage and micro-batch
  std::vector<MemoryNeeds> needs_;        // per replica
  std::vector<std::size_t> index_;        // per replica: among its rank's
  std::vector<bool> aligned_;             // per rank
  std::vector<double> flush_;             // per rank
};

}  // namespace stagecraft::synthesis
