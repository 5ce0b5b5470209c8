#include "schedules/synthesis/lower_bound.h"

#include "schedules/synthesis/heads_and_tails.h"
#include "schedules/synthesis/rank_memory.h"

#include <algorithm>
#include <limits>

namespace stagecraft::synthesis {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

using Part = HeadsAndTails::Part;

/// From the start of a forward to the end of its input part, if nothing is waited for.
double round_trip(const Problem& problem, StageId stage, MicroBatch mb) {
  double seconds = 0;
  for (int s = stage.value; s < problem.stages(); ++s) {
    const TimedReplica& replica = problem.replica(StageId{s}, mb);
    seconds += replica.forward + replica.input_part;
    if (s > stage.value)
      seconds += problem.activation_seconds(StageId{s}, mb) + problem.gradient_seconds(StageId{s - 1}, mb);
  }
  return seconds;
}

/// What a rank has beside what always stands there, the slots that are no micro-batch's included.
Bytes room_of(const Problem& problem, Rank rank, const RankMemory& memory) {
  const Bytes room = *problem.capacity() - memory.standing();
  Bytes spare;
  for (std::size_t place = 0; place < problem.replicas_of(rank).size(); ++place)
    spare += memory.spare_slots(place, room);
  return room - spare;
}

double area_bound(const Problem& problem, const HeadsAndTails& jobs, Rank rank) {
  const RankMemory memory(problem, rank);
  const auto room = static_cast<double>(room_of(problem, rank, memory).value);
  if (room <= 0) return 0;  // nothing fits, and nothing is to be bounded
  double area = 0;          // up to the last input part
  double area_to_end = 0;   // up to the last weight part
  double head = kInfinite;
  double tail = kInfinite;
  double tail_to_end = kInfinite;
  const auto& replicas = problem.replicas_of(rank);
  for (std::size_t place = 0; place < replicas.size(); ++place) {
    const TimedReplica& replica = problem.replicas()[replicas[place]];
    if (replica.count == 0) continue;
    const double before = memory.kept_from_begin(place) ? 0 : replica.forward;  // then that does not count
    const auto bytes = static_cast<double>(memory.kept(place).value);
    const auto for_weight = static_cast<double>(memory.kept_for_weight(place).value);
    double turn = kInfinite;
    for (int k = 0; k < replica.count; ++k) {
      const MicroBatch mb = replica.micro_batch(k);
      head = std::min(head, jobs.job(Part::forward, replica.stage, mb).head + before);
      tail = std::min(tail, jobs.job(Part::input, replica.stage, mb).tail);
      tail_to_end = std::min(tail_to_end, jobs.job(Part::weight, replica.stage, mb).tail);
      turn = std::min(turn, round_trip(problem, replica.stage, mb) - before);
    }
    area += bytes * turn * replica.count;
    area_to_end += (bytes * turn + for_weight * replica.weight_part) * replica.count;
  }
  if (head == kInfinite) return 0;
  if (problem.goes_on()) return std::max(area, area_to_end) / room;
  return head + std::max(area / room + tail, area_to_end / room + tail_to_end);
}

/// All that a rank computes in a step.
double work_of(const Problem& problem, Rank rank) {
  double seconds = 0;
  for (const std::size_t place : problem.replicas_of(rank)) {
    const TimedReplica& replica = problem.replicas()[place];
    seconds += replica.step;
    for (int k = 0; k < replica.count; ++k) {
      seconds += replica.forward + replica.input_part + replica.weight_part +
                 problem.recompute_seconds(replica.stage, replica.micro_batch(k));
    }
  }
  return seconds;
}

}  // namespace

LowerBound lower_bound(const Problem& problem) {
  LowerBound bound;
  bound.rank = Rank{0};
  const auto offer = [&](double seconds, LowerBound::Kind kind, Rank rank) {
    if (seconds > bound.seconds) bound = {seconds, kind, rank};
  };
  const bool frozen = problem.gradient_from().value > 0;
  if (problem.goes_on() || frozen) {
    for (int r = 0; r < problem.ranks(); ++r) {
      offer(work_of(problem, Rank{r}), LowerBound::Kind::work, Rank{r});
    }
  }
  if (frozen) return bound;  // frozen stages keep nothing, and go on beside the step before
  const auto offer_work = [&](const HeadsAndTails& jobs, LowerBound::Kind kind) {
    for (int r = 0; r < problem.ranks(); ++r)
      offer(preemptive_makespan(jobs.jobs_of(Rank{r})), kind, Rank{r});
  };
  offer_work(HeadsAndTails(problem, HeadsAndTails::Memory::unlimited), LowerBound::Kind::work);
  if (!problem.capacity()) return bound;
  const HeadsAndTails jobs(problem, HeadsAndTails::Memory::counted);
  offer_work(jobs, LowerBound::Kind::memory);
  for (int r = 0; r < problem.ranks(); ++r)
    offer(area_bound(problem, jobs, Rank{r}), LowerBound::Kind::memory, Rank{r});
  return bound;
}

}  // namespace stagecraft::synthesis
