#include "engine/run/resolve/programs.h"

#include "schedules/generators/schedule.h"
#include "schedules/lowering/lowering.h"
#include "schedules/program/consecutive.h"

#include <algorithm>
#include <numeric>

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

RunPrograms::RunPrograms(const Plan& plan, const RunShape& shape, int slots_per_channel) {
  LoweringOptions options;
  options.slots_per_channel = slots_per_channel;
  int most = -1;
  std::vector<Segment> segments = distinct_shapes(shape);
  // A resumed asynchronous run may begin where none of its own segments does (other intervals than before),
  // so its first segment has a shape of its own.
  SegmentWalk walk(shape);
  for (Segment segment; walk.next(segment);) {
    segments.push_back(segment);
    if (segment.kind == SegmentKind::train) break;
  }
  for (const Segment& segment : segments) {
    if (programs_.contains({segment.kind, segment.group_sizes})) continue;
    LoweredProgram program = lower(program_of(plan, segment), options);
    Proof proof = prove_within(program, plan);
    Key key{segment.kind, segment.group_sizes};
    if (segment.kind == SegmentKind::train && total(segment.group_sizes) > most) {
      most = total(segment.group_sizes);
      main_proof_ = std::move(proof);
    }
    programs_.emplace(std::move(key), std::move(program));
  }
  STAGECRAFT_CHECK(most >= 0, "a run has no training segment");
  prove_steps_together(plan);
  for (const MemoryProof& proof : memory_proofs_) memory_.push_back(proof.peak);
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

void RunPrograms::prove_steps_together(const Plan& plan) {
  std::vector<const LoweredProgram*> steps;
  for (const auto& [key, program] : programs_) {
    if (is_step(key.first, key.second)) steps.push_back(&program);
  }
  for (const LoweredProgram* step : steps) {
    if (!can_be_followed(*step)) continue;
    for (const LoweredProgram* next : steps) {
      (void)prove_within(in_a_row_.emplace_back(consecutive({step, next})), plan);
    }
  }
}

bool RunPrograms::follow(const Segment& segment, const Segment& next) const {
  return is_step(segment.kind, segment.group_sizes) && is_step(next.kind, next.group_sizes) &&
         can_be_followed(of(segment));
}

const LoweredProgram& RunPrograms::of(const Segment& segment) const {
  const auto found = programs_.find({segment.kind, segment.group_sizes});
  STAGECRAFT_CHECK(found != programs_.end(), "a segment of a shape that was not proved");
  return found->second;
}

std::vector<const LoweredProgram*> RunPrograms::all() const {
  std::vector<const LoweredProgram*> programs;
  for (const auto& [key, program] : programs_) programs.push_back(&program);
  return programs;
}

std::vector<const LoweredProgram*> RunPrograms::all_in_a_row() const {
  std::vector<const LoweredProgram*> programs = all();
  for (const LoweredProgram& program : in_a_row_) programs.push_back(&program);
  return programs;
}

}  // namespace stagecraft
