#include "schedules/checker/checker.h"

#include "schedules/checker/proofs.h"

namespace stagecraft {

Proof check(const LoweredProgram& program, const CostTable* costs, std::optional<Bytes> capacity,
            const TransportRules& rules) {
  Proof proof;
  proof.slots_per_channel = program.slots_per_channel;
  checker::Findings findings;
  if (checker::well_formed(program, findings)) {
    const checker::ProgramIndex index(program, findings);
    checker::prove_completeness(index, findings);
    checker::prove_updates(index, findings);
    checker::prove_reports(index, findings);
    checker::prove_matching(index, findings);
    // Which ends meet, where the order decides, must be known before it can be said who waits for whom.
    if (checker::prove_order(index, rules, findings)) {
      proof.device_waits = checker::prove_no_deadlock(index, rules, costs, findings);
    }
    proof.stages = checker::prove_versions(index, findings);
    checker::prove_buffers(index, findings);
    if (costs != nullptr && !findings.any()) {
      proof.memory = checker::prove_memory(index, *costs, capacity, findings);
    }
  }
  proof.findings = findings.take();
  return proof;
}

std::string refusal(const std::vector<Finding>& findings) {
  std::string message = "the program was refused:";
  for (const Finding& finding : findings) {
    message += "\n  " + enum_name(finding.kind) + ": " + finding.message;
    for (const std::string& line : finding.cycle) message += "\n    " + line;
  }
  return message;
}

Proof prove(const LoweredProgram& program, const CostTable* costs, std::optional<Bytes> capacity,
            const TransportRules& rules) {
  Proof proof = check(program, costs, capacity, rules);
  if (!proof.accepted()) throw RefusedError(refusal(proof.findings));
  return proof;
}

std::vector<MemoryProof> memory_of(const LoweredProgram& accepted, const CostTable& costs) {
  checker::Findings findings;
  const checker::ProgramIndex index(accepted, findings);
  return checker::prove_memory(index, costs, /*capacity=*/{}, findings);
}

}  // namespace stagecraft
