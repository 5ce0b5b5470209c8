#pragma once

// The proof. A program that `check` accepts finishes, on any timing, on a transport of the given rules (by
// default with every send blocking until its receive is posted, MPI_Ssend), computes every micro-batch
// exactly once with consistent weights, and needs no more memory than stated. Time and memory are linear in
// the number of actions, but for a sort.

#include "schedules/costs.h"
#include "schedules/program.h"
#include "schedules/transport_rules.h"

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace stagecraft {

/// Why a program is refused: one sentence, and where it helps the actions involved.
struct Finding {
  enum class Kind : std::uint8_t { completeness, matching, deadlock, versions, buffers, memory };
  Kind kind;
  std::string message;
  /// A deadlock's shortest cycle, in waiting order: "rank 0 waits at [12] start send ... for rank 1 to pass
  /// [9] post receive ...", "rank 1 waits at [7] start send ... for rank 0 to pass ...", one line a rank.
  std::vector<std::string> cycle;
};

template <>
struct EnumNames<Finding::Kind> {
  static constexpr std::array values{
      std::pair{Finding::Kind::completeness, "completeness"}, std::pair{Finding::Kind::matching, "matching"},
      std::pair{Finding::Kind::deadlock, "deadlock"},         std::pair{Finding::Kind::versions, "versions"},
      std::pair{Finding::Kind::buffers, "buffers"},           std::pair{Finding::Kind::memory, "memory"}};
};

/// What was proved of one (rank, stage).
struct StageProof {
  StageId stage;
  Rank rank;
  int in_flight =
      0;  ///< most micro-batches with forward done and backward (its input part) not; 0 in validation
  int versions_alive = 0;  ///< most versions of the weights needed at once, the current one included
  /// Over the micro-batches: the version that the update with a micro-batch's gradient is applied to, minus
  /// the version that the micro-batch read.
  int staleness_min = 0;
  int staleness_max = 0;
};

/// What was proved of one rank's memory, from requested tensor bytes.
struct MemoryProof {
  Rank rank;
  Bytes peak;
  std::string at;  ///< the first action at which the peak is reached; empty for a rank without actions
  // What the peak is made of:
  Bytes weights;    ///< weights and buffers of the current version
  Bytes versions;   ///< older versions
  Bytes gradients;  ///< one accumulation
  Bytes optimizer_state;
  Bytes kept;       ///< loaded data, activations kept for backward or handed over on the rank
  Bytes transfers;  ///< receive slots, sends under way, gradients handed over on the rank
  Bytes transient;  ///< within the action
};

struct Proof {
  std::vector<Finding> findings;  ///< empty: accepted
  std::vector<StageProof> stages;
  std::vector<MemoryProof> memory;  ///< empty without costs
  int slots_per_channel = 0;        ///< as lowered

  [[nodiscard]] bool accepted() const { return findings.empty(); }
};

/// Proves a lowered program, or says what is wrong with it (all findings, at most 20). Never throws for a bad
/// program, however malformed: what is out of range, on the wrong rank or of the wrong size is a finding, and
/// the proofs then stop there.
///   1. completeness: every (stage, micro-batch) has one forward and one backward (or input, then weight
///   part),
///      in range, on the right replica, behind what they need: the load on the first and the last stage, the
///      input and the gradient (waited for, or handed over earlier on the same rank), a recompute in between
///      if there is one. Every accumulation is stepped once, after all that feeds it, the reduction (where a
///      stage has replicas) and the norm agreement (where the program has any). Validation has forwards only.
///      Forwards of a stage, and the gradients it adds, go in micro-batch order, and one accumulation is
///      closed before the next is opened: results do not depend on the schedule. Every group's loss is
///      reported by the last stage and, after its step, by stage 0's first rank. Fields that an action does
///      not use are "none";
///   2. matching: every transfer has its post_receive, wait_receive, start_send and wait_send, once each, in
///   that
///      order on either end, between the right ranks; all members of a collective see them in one order;
///   3. deadlock: program order plus "start_send waits for its post_receive, wait_receive for its start_send,
///   a
///      collective for all its members" has no cycle. Otherwise the cycle is the shortest circle of ranks
///      among those that stand still when the program can go no further;
///   4. versions: the reads of one (stage, micro-batch) agree, no version is read before the step that writes
///   it,
///      steps go 0, 1, 2, ... A version that is still read stays alive through later steps;
///   5. buffers: a slot is posted when free, for a tensor of its own boundary, is read only between
///   wait_receive
///      and release (an activation's from the forward to the end of the backward), and all are free at the
///      end.
/// With `costs`, and only for a program that passes all of that, the peak bytes a rank: schedules/checker/
/// memory.cpp says what counts. With `capacity`, a rank above it is a finding.
[[nodiscard]] Proof check(const LoweredProgram& program, const CostTable* costs = nullptr,
                          std::optional<Bytes> capacity = std::nullopt, const TransportRules& rules = {});

/// Every finding, and the cycle: what is told when a program is refused.
[[nodiscard]] std::string refusal(const std::vector<Finding>& findings);

/// `check`, and RefusedError with the refusal when it is not accepted.
Proof prove(const LoweredProgram& program, const CostTable* costs = nullptr,
            std::optional<Bytes> capacity = std::nullopt, const TransportRules& rules = {});

}  // namespace stagecraft
