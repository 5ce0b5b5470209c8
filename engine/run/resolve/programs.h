#pragma once

// The programs of a run: every shape of segment it will meet, generated, lowered and proved before the first
// step. The trainer only looks them up.

#include "partitioner/plan/plan.h"
#include "schedules/checker/checker.h"
#include "schedules/program/program.h"
#include "schedules/program/segments.h"

#include <map>
#include <utility>
#include <vector>

namespace stagecraft {

class RunPrograms {
 public:
  /// Throws RefusedError for a program that fails its
  /// proof, with the finding; memory is proved where the plan has costs, and held against its capacity.
  RunPrograms(const Plan& plan, const RunShape& shape, int slots_per_channel);

  [[nodiscard]] const LoweredProgram& of(const Segment& segment) const;
  /// Whether a rank may begin `next` when it has ended its list of `segment`, wherever the others are: both are single
  /// steps, which were proved together.
  [[nodiscard]] bool follow(const Segment& segment, const Segment& next) const;
  /// Of the training program with the most micro-batches: what the start-up tables show.
  [[nodiscard]] const Proof& proof() const { return main_proof_; }
  /// Proved peak bytes per rank, the largest over all programs. Empty without costs.
  [[nodiscard]] const std::vector<Bytes>& memory() const { return memory_; }
  /// What those peaks are made of.
  [[nodiscard]] const std::vector<MemoryProof>& memory_proofs() const { return memory_proofs_; }
  [[nodiscard]] std::size_t count() const { return programs_.size(); }
  [[nodiscard]] std::vector<const LoweredProgram*> all() const;
  /// All, and every pair of steps that may follow each other as one program: what a transport must serve.
  [[nodiscard]] std::vector<const LoweredProgram*> all_in_a_row() const;

 private:
  using Key = std::pair<SegmentKind, std::vector<int>>;
  /// Proves that `program` is safe, and keeps the memory that it needs.
  Proof prove_within(const LoweredProgram& program, const Plan& plan);
  /// Every pair of steps that may follow each other: what one leaves on a rank is what the next finds there.
  void prove_steps_together(const Plan& plan);

  std::map<Key, LoweredProgram> programs_;
  std::vector<LoweredProgram> in_a_row_;
  Proof main_proof_;
  std::vector<Bytes> memory_;
  std::vector<MemoryProof> memory_proofs_;
};

}  // namespace stagecraft
