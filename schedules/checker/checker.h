#pragma once

// The proof. A program that `check` accepts finishes, on any timing, on a transport of the given rules (by
// default with every send blocking until its receive is posted, MPI_Ssend), computes every micro-batch
// exactly once with consistent weights, and needs no more memory than stated. Time and memory are linear in
// the number of actions, but for a sort.

#include "schedules/checker/proof.h"
#include "schedules/costs/costs.h"
#include "schedules/program/program.h"
#include "schedules/rules/transport_rules.h"

#include <optional>
#include <string>
#include <vector>

namespace stagecraft {

/// Proves a lowered program, or says what is wrong with it (all findings, at most 20). Never throws for a bad
/// program, however malformed: what is out of range, on the wrong rank or of the wrong size is a finding, and
/// the proofs then stop there.
///   1. completeness: every (stage, micro-batch) has one forward and one backward (or input, then weight
///   part), in range, on the right replica, behind what they need: the load on the first and the last stage,
///      the input and the gradient (waited for, or handed over earlier on the same rank), a recompute in
///      between if there is one. Every accumulation is stepped once, after all that feeds it, the reduction
///      (where a stage has replicas) and the norm agreement (where the program has any). Validation has
///      forwards only. Forwards of a stage, and the gradients it adds, go in micro-batch order, and one
///      accumulation is closed before the next is opened: results do not depend on the schedule. Every
///      group's loss is reported by the last stage and, after its step, by stage 0's first rank. Fields that
///      an action does not use are "none";
///   2. matching: every transfer has its post_receive, wait_receive, start_send and wait_send, once each, in
///      that order on either end, between the right ranks; all members of a collective see them in one order;
///   3. deadlock: program order plus "start_send waits for its post_receive, wait_receive for its start_send,
///      a collective for all its members" has no cycle. Otherwise the cycle is the shortest circle of ranks
///      among those that stand still when the program can go no further. Where the rules have operations
///      launched and announced, each host may also wait for its whole device before any action
///      (rules/device_waits.h);
///   4. versions: the reads of one (stage, micro-batch) agree, no version is read before the step that writes
///      it, steps go 0, 1, 2, ... A version that is still read stays alive through later steps;
///   5. buffers: a slot is posted when free, for a tensor of its own boundary, is read only between
///      wait_receive and release (an activation's from the forward to the end of the backward), and all are
///      free at the end.
/// With `costs`, and only for a program that passes all of that, the peak bytes per rank:
/// schedules/memory/held.h says what counts. With `capacity`, a rank above it is a finding.
[[nodiscard]] Proof check(const LoweredProgram& program, const CostTable* costs = nullptr,
                          std::optional<Bytes> capacity = std::nullopt, const TransportRules& rules = {});

/// Every finding, and the cycle: what is told when a program is refused.
[[nodiscard]] std::string refusal(const std::vector<Finding>& findings);

/// `check`, and RefusedError with the refusal when it is not accepted.
Proof prove(const LoweredProgram& program, const CostTable* costs = nullptr,
            std::optional<Bytes> capacity = std::nullopt, const TransportRules& rules = {});

/// Proof::memory of a program that `check` accepts, without the rest: for who asks of one program with many costs.
[[nodiscard]] std::vector<MemoryProof> memory_of(const LoweredProgram& accepted, const CostTable& costs);

}  // namespace stagecraft
