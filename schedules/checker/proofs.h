#pragma once

// The proofs, one file each, where it says what is proved. All take a well-formed program; each adds a finding
// for whatever is not so.

#include "schedules/checker/program_index.h"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace stagecraft::checker {

/// What proofs have in common: the program, and findings of one kind.
class ProofOf {
 protected:
  ProofOf(Finding::Kind kind, const ProgramIndex& index, Findings& findings)
      : index_(index), findings_(findings), kind_(kind) {}

  void add(const std::string& message) { findings_.add(kind_, message); }
  /// "rank 0 [3] step ...: needs `wanted`, which comes only later: rank 0 [9] ..." or "which is nowhere",
  /// unless `what` stands before `here`.
  void needs(ActionPlace here, ActionPlace what, std::string_view wanted);

  const ProgramIndex& index_;
  Findings& findings_;

 private:
  Finding::Kind kind_;
};

void prove_completeness(const ProgramIndex& index, Findings& findings);
void prove_updates(const ProgramIndex& index, Findings& findings);
void prove_reports(const ProgramIndex& index, Findings& findings);
void prove_matching(const ProgramIndex& index, Findings& findings);
/// False where the two ends of a channel have two orders.
bool prove_order(const ProgramIndex& index, const TransportRules& rules, Findings& findings);
/// What does not match is taken not to wait. Of launched operations also where a host may wait for its device
/// (device_waits.h): everywhere, where they are announced; otherwise it is for the reader to judge.
[[nodiscard]] std::optional<DeviceWaits> prove_no_deadlock(const ProgramIndex& index,
                                                           const TransportRules& rules,
                                                           const CostTable* costs, Findings& findings);
/// Fills in-flight, versions alive and staleness.
[[nodiscard]] std::vector<StageProof> prove_versions(const ProgramIndex& index, Findings& findings);
/// The most versions of a holder's weights that are alive at once beside the newest: each from the step that
/// overtakes it to its last reader.
[[nodiscard]] int old_versions(const ProgramIndex& index, std::size_t holder);
void prove_buffers(const ProgramIndex& index, Findings& findings);
/// Peak bytes per rank; a rank above `capacity` is a finding. Needs a program that passed all other proofs.
[[nodiscard]] std::vector<MemoryProof> prove_memory(const ProgramIndex& index, const CostTable& costs,
                                                    std::optional<Bytes> capacity, Findings& findings);

}  // namespace stagecraft::checker
