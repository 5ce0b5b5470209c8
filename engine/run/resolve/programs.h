#pragma once

// The programs of a run: every shape of segment it will meet, generated, lowered and proved before the first
// step. The proof needs the lists of all ranks; the run looks up those of this process's ranks, and only they
// stay.

#include "engine/core/rank_program.h"
#include "engine/optimizers/staleness_advice.h"
#include "partitioner/plan/plan.h"
#include "schedules/checker/checker.h"
#include "schedules/lowering/lowering.h"
#include "schedules/program/program.h"
#include "schedules/program/segments.h"

#include <cstddef>
#include <functional>
#include <map>
#include <utility>
#include <vector>

namespace stagecraft {

class RunPrograms {
 public:
  /// What somebody needs of all ranks' lists: gets all programs, and every pair of steps that may follow each
  /// other as one program, which is what a transport must serve. Called once, before lists go.
  using Look = std::function<void(const std::vector<const LoweredProgram*>& all_in_a_row)>;

  /// `ranks`: whose programs are kept, those of this process. Throws RefusedError for a program that fails
  /// its proof, with the finding; memory is proved where the plan has costs, and held against its capacity.
  RunPrograms(const Plan& plan, const RunShape& shape, int slots_per_channel, const std::vector<Rank>& ranks,
              const Look& look = nullptr);

  /// One more shape of segment, which the walk does not have: of batches that a program brings. Does nothing for one
  /// that is known. Throws as the constructor does.
  void add(const Plan& plan, const Segment& segment);

  /// Of a rank whose programs are kept.
  [[nodiscard]] const RankProgramPtr& of(const Segment& segment, Rank rank) const;
  /// Whether a rank may begin `next` when it has ended its list of `segment`, wherever the others are: both are single
  /// steps, which were proved together.
  [[nodiscard]] bool follow(const Segment& segment, const Segment& next) const;
  /// Of the training program with the most micro-batches: what the start-up tables show.
  [[nodiscard]] const Proof& proof() const { return main_proof_; }
  /// Proved peak bytes per rank, the largest over all programs. Empty without costs.
  [[nodiscard]] const std::vector<Bytes>& memory() const { return memory_; }
  /// What those peaks are made of.
  [[nodiscard]] const std::vector<MemoryProof>& memory_proofs() const { return memory_proofs_; }
  /// Of the training programs' gradients.
  [[nodiscard]] const Lateness& lateness() const { return lateness_; }
  [[nodiscard]] std::size_t count() const { return kept_.size(); }

 private:
  using Key = std::pair<SegmentKind, std::vector<int>>;
  using Programs = std::map<Key, LoweredProgram>;
  struct Kept {
    bool can_be_followed = false;
    bool with_others = true;              ///< proved together with all others of which this is true
    std::vector<RankProgramPtr> by_rank;  ///< null for ranks of other processes
  };
  /// Proves that `program` is safe, and keeps the memory that it needs.
  Proof prove_within(const LoweredProgram& program, const Plan& plan);
  /// Every pair of steps that may follow each other: what one leaves on a rank is what the next finds there.
  /// Returns them if somebody looks.
  std::vector<LoweredProgram> prove_steps_together(const Programs& programs, const Plan& plan, bool look);
  void note_lateness(const LoweredProgram& program);
  void keep(const Key& key, const LoweredProgram& program);

  LoweringOptions options_;
  std::vector<Rank> ranks_;  ///< whose programs are kept
  std::map<Key, Kept> kept_;
  Proof main_proof_;
  std::vector<Bytes> memory_;
  std::vector<MemoryProof> memory_proofs_;
  Lateness lateness_;
};

}  // namespace stagecraft
