#include "engine/run/resolve/programs.h"

#include "schedules/generators/schedule.h"
#include "schedules/lowering/lowering.h"
#include "schedules/program/consecutive.h"
#include "schedules/rules/staleness.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace stagecraft {
namespace {

int total(const std::vector<int>& sizes) { return std::accumulate(sizes.begin(), sizes.end(), 0); }

/// Whether a segment is one training step, at whose end nothing is under way on a rank.
bool is_step(SegmentKind kind, const std::vector<int>& group_sizes) {
  return kind == SegmentKind::train && group_sizes.size() == 1;
}

ScheduleProgram program_of(const Plan& plan, const Segment& segment) {
  if (segment.kind == SegmentKind::validate) {
    return validation_program(plan.placement(), total(segment.group_sizes), plan.also_load(), plan.skips);
  }
  return plan_program(plan, segment.group_sizes);
}

}  // namespace

RunPrograms::RunPrograms(const Plan& plan, const RunShape& shape, int slots_per_channel,
                         const std::vector<Rank>& ranks, const Look& look)
    : ranks_(ranks) {
  options_.slots_per_channel = slots_per_channel;
  int most = -1;
  std::vector<Segment> segments = distinct_shapes(shape);
  // A resumed asynchronous run may begin where none of its own segments does (other intervals than before),
  // so its first segment has a shape of its own.
  SegmentWalk walk(shape);
  for (Segment segment; walk.next(segment);) {
    segments.push_back(segment);
    if (segment.kind == SegmentKind::train) break;
  }
  Programs programs;
  for (const Segment& segment : segments) {
    if (programs.contains({segment.kind, segment.group_sizes})) continue;
    LoweredProgram program = lower(program_of(plan, segment), options_);
    Proof proof = prove_within(program, plan);
    Key key{segment.kind, segment.group_sizes};
    if (segment.kind == SegmentKind::train && total(segment.group_sizes) > most) {
      most = total(segment.group_sizes);
      main_proof_ = std::move(proof);
    }
    programs.emplace(std::move(key), std::move(program));
  }
  STAGECRAFT_CHECK(most >= 0, "a run has no training segment");
  const std::vector<LoweredProgram> in_a_row = prove_steps_together(programs, plan, look != nullptr);
  for (const MemoryProof& proof : memory_proofs_) memory_.push_back(proof.peak);
  if (look) {
    std::vector<const LoweredProgram*> all;
    for (const auto& [key, program] : programs) all.push_back(&program);
    for (const LoweredProgram& program : in_a_row) all.push_back(&program);
    look(all);
  }
  for (const StageProof& stage : main_proof_.stages)
    lateness_.most = std::max(lateness_.most, stage.staleness_max);
  // One by one, so that lists go as those that stay are made of them.
  while (!programs.empty()) {
    const auto lowered = programs.extract(programs.begin());
    keep(lowered.key(), lowered.mapped());
  }
}

void RunPrograms::keep(const Key& key, const LoweredProgram& program) {
  if (lateness_.most > 0) note_lateness(program);
  Kept& kept = kept_[key];
  kept.can_be_followed = can_be_followed(program);
  kept.by_rank.resize(program.ranks.size());
  for (const Rank rank : ranks_) kept.by_rank.at(rank.index()) = rank_program(program, rank);
}

void RunPrograms::add(const Plan& plan, const Segment& segment) {
  const Key key{segment.kind, segment.group_sizes};
  if (kept_.contains(key)) return;
  const LoweredProgram program = lower(program_of(plan, segment), options_);
  (void)prove_within(program, plan);
  keep(key, program);
  kept_.at(key).with_others = false;  // who brings batches waits for one step before the next
}

Proof RunPrograms::prove_within(const LoweredProgram& program, const Plan& plan) {
  Proof proof = prove(program, plan.costs ? &*plan.costs : nullptr, plan.capacity);
  memory_proofs_.resize(std::max(memory_proofs_.size(), proof.memory.size()));
  for (const MemoryProof& memory : proof.memory) {
    MemoryProof& worst = memory_proofs_[memory.rank.index()];
    if (!worst.rank.valid() || memory.peak > worst.peak) worst = memory;
  }
  return proof;
}

std::vector<LoweredProgram> RunPrograms::prove_steps_together(const Programs& programs, const Plan& plan,
                                                              bool look) {
  std::vector<const LoweredProgram*> steps;
  for (const auto& [key, program] : programs) {
    if (is_step(key.first, key.second)) steps.push_back(&program);
  }
  std::vector<LoweredProgram> looked_at;
  for (const LoweredProgram* step : steps) {
    if (!can_be_followed(*step)) continue;
    for (const LoweredProgram* next : steps) {
      LoweredProgram both = consecutive({step, next});
      (void)prove_within(both, plan);
      if (look) looked_at.push_back(std::move(both));
    }
  }
  return looked_at;
}

void RunPrograms::note_lateness(const LoweredProgram& program) {
  if (program.kind != SegmentKind::train) return;
  for (int stage = 0; stage < program.placement.stages(); ++stage) {
    for (const UpdateStaleness& update : staleness_of_updates(program, StageId{stage})) {
      lateness_.mean = std::max(lateness_.mean, update.gradients);
      lateness_.of_some = lateness_.of_some || update.gradients != std::floor(update.gradients);
    }
  }
}

bool RunPrograms::follow(const Segment& segment, const Segment& next) const {
  if (!is_step(segment.kind, segment.group_sizes) || !is_step(next.kind, next.group_sizes)) return false;
  const auto kept = [&](const Segment& its) -> const Kept& {
    const auto found = kept_.find({its.kind, its.group_sizes});
    STAGECRAFT_CHECK(found != kept_.end(), "a segment of a shape that was not proved");
    return found->second;
  };
  return kept(segment).can_be_followed && kept(segment).with_others && kept(next).with_others;
}

const RankProgramPtr& RunPrograms::of(const Segment& segment, Rank rank) const {
  const auto found = kept_.find({segment.kind, segment.group_sizes});
  STAGECRAFT_CHECK(found != kept_.end(), "a segment of a shape that was not proved");
  const RankProgramPtr& program = found->second.by_rank.at(rank.index());
  STAGECRAFT_CHECK(program != nullptr, "a rank of another process");
  return program;
}

}  // namespace stagecraft
