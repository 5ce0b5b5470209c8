#include "engine/run/train/rehearsal.h"

#include <algorithm>

namespace stagecraft {
namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

int most_in_flight(const Proof& proof) {
  int most = 1;
  for (const StageProof& stage : proof.stages) most = std::max(most, stage.in_flight);
  return most;
}

}  // namespace

RunShape rehearsal_shape(const RunShape& run, int ranks, int in_flight) {
  RunShape small = run;
  small.first_step = 0;
  small.validate_every = 0;
  small.checkpoint_every = 0;
  small.validation_owed = false;
  small.synchronous_steps = 0;
  // Schedules may ask for a multiple of the ranks.
  const std::int64_t wanted = ceil_div(in_flight + 2, ranks) * ranks;
  const std::int64_t of_a_step = ceil_div(run.batch, run.micro_batch);
  if (run.synchronous) {
    const std::int64_t last = run.drop_last ? 0 : run.samples % run.batch;
    if (wanted < of_a_step) small.batch = wanted * run.micro_batch;
    small.steps = last == 0 ? 1 : 2;
    small.samples = std::min(run.samples, small.batch + last);
    if (last > 0 && last >= small.batch) small.samples = small.batch + last % small.batch;
  } else {
    small.steps = std::max<std::int64_t>(2, ceil_div(2 * wanted, of_a_step));
  }
  small.steps = std::min(small.steps, run.steps);
  const std::int64_t most_validated = 2 * run.micro_batch + run.validation_samples % run.micro_batch;
  small.validation_samples = std::min(run.validation_samples, most_validated);
  return small;
}

Rehearsal::Rehearsal(const RunSetup& setup, Rank rank)
    : rank_(rank),
      shape_(rehearsal_shape(setup.shape(), setup.world(), most_in_flight(setup.programs().proof()))),
      programs_(setup.plan(), shape_, setup.config().comms.slots_per_channel, {rank}) {}

std::vector<Worker::Rehearsed> Rehearsal::segments() const {
  std::vector<Worker::Rehearsed> segments;
  SegmentWalk walk(shape_);
  for (Segment segment; walk.next(segment);) segments.emplace_back(programs_.of(segment, rank_), segment);
  return segments;
}

}  // namespace stagecraft
