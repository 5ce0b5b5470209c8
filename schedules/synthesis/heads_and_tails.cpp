#include "schedules/synthesis/heads_and_tails.h"

#include "base/bisect.h"

#include <algorithm>

namespace stagecraft::synthesis {
namespace {

/// Micro-batches of a part that are looked at before or behind a computation: those next to it say most.
constexpr int kWindow = 48;

int done(const ReplicaCounts& counts, HeadsAndTails::Part part) {
  return part == HeadsAndTails::Part::forward ? counts.forwards
         : part == HeadsAndTails::Part::input ? counts.inputs
                                              : counts.weights;
}

/// Of a rank's `place`-th replica. Without a capacity there are none. Where nothing would do, as many as there
/// can be: least_memory.h says so better.
MemoryNeeds memory_needs(const Problem& problem, Rank rank, std::size_t place) {
  const int count = problem.replicas()[problem.replicas_of(rank)[place]].count;
  const std::vector<int> none(to_size(count), 0);
  MemoryNeeds needs{none, none, none};
  if (!problem.capacity()) return needs;
  const RankMemory state(problem, rank);
  const auto fits = [&](const ReplicaCounts& before, Op op) {
    return state.least_during(before, place, op) <= *problem.capacity();
  };
  // A later one needs no less than an earlier one that comes before it: counts only grow. With all weight
  // parts done whose input parts are, least is held.
  int inputs = 0;
  int weights = 0;
  for (int n = 0; n < count; ++n) {
    const auto at = to_size(n);
    while (inputs < n && !fits({n, inputs, inputs}, Op::forward)) ++inputs;
    const auto any_fits = [&] {
      for (int i = std::max(inputs, weights); i <= n; ++i) {
        if (fits({n, i, weights}, Op::forward)) return true;
      }
      return false;
    };
    while (weights < inputs && !any_fits()) ++weights;
    needs.inputs_before_forward[at] = inputs;
    needs.weights_before_forward[at] = weights;
  }
  weights = 0;
  for (int n = 0; n < count; ++n) {
    while (weights < n && !fits({n + 1, n, weights}, Op::backward_input)) ++weights;
    needs.weights_before_input[to_size(n)] = weights;
  }
  return needs;
}

}  // namespace

HeadsAndTails::HeadsAndTails(const Problem& problem, Memory memory)
    : problem_(problem),
      micro_batches_(to_size(problem.micro_batches())),
      index_(problem.replicas().size()),
      aligned_(to_size(problem.ranks())),
      flush_(to_size(problem.ranks()), 0) {
  for (auto& jobs : jobs_) jobs.resize(to_size(problem.stages()) * micro_batches_);
  for (const TimedReplica& replica : problem.replicas()) {
    flush_[replica.rank.index()] += replica.step;
    for (int k = 0; k < replica.count; ++k) {
      const MicroBatch mb = replica.micro_batch(k);
      at(Part::forward, replica.stage, mb).seconds = replica.forward;
      at(Part::input, replica.stage, mb).seconds = replica.input_part;
      at(Part::weight, replica.stage, mb).seconds = replica.weight_part;
    }
  }
  if (problem.goes_on()) {
    end_with_first_stage();
  } else if (problem.clip()) {
    std::fill(flush_.begin(), flush_.end(), *std::max_element(flush_.begin(), flush_.end()));
  }
  find_needs(memory);
  find_heads();
  find_tails();
}

void HeadsAndTails::end_with_first_stage() {
  const std::vector<Rank>& first = problem_.placement().ranks.front();
  double least = std::numeric_limits<double>::infinity();
  for (const Rank rank : first) least = std::min(least, flush_[rank.index()]);
  std::ranges::fill(flush_, kNothing);
  for (const Rank rank : first) flush_[rank.index()] = least;
}

std::vector<Job> HeadsAndTails::jobs_of(Rank rank) const {
  std::vector<Job> jobs;
  for (const std::size_t i : problem_.replicas_of(rank)) {
    const TimedReplica& replica = problem_.replicas()[i];
    for (int k = 0; k < replica.count; ++k) {
      const MicroBatch mb = replica.micro_batch(k);
      for (const Part part : kParts) jobs.push_back(job(part, replica.stage, mb));
      const double again = problem_.recompute_seconds(replica.stage, mb);
      if (again == 0) continue;
      jobs.push_back({.head = job(Part::forward, replica.stage, mb).end(),
                      .seconds = again,
                      .tail = job(Part::input, replica.stage, mb).whole()});
    }
  }
  return jobs;
}

HeadsAndTails::Place HeadsAndTails::place_of(int stage, MicroBatch mb) const {
  return {problem_.replica_of(StageId{stage}, mb), mb.value / problem_.placement().replicas(StageId{stage})};
}

void HeadsAndTails::find_needs(Memory memory) {
  needs_.resize(problem_.replicas().size());
  for (std::size_t r = 0; r < aligned_.size(); ++r) {
    aligned_[r] = RankMemory(problem_, Rank{r}).aligned();
    const auto& replicas = problem_.replicas_of(Rank{r});
    for (std::size_t i = 0; i < replicas.size(); ++i) {
      index_[replicas[i]] = i;
      if (memory == Memory::counted) {
        needs_[replicas[i]] = memory_needs(problem_, Rank{r}, i);
      } else {
        const std::vector<int> none(to_size(problem_.replicas()[replicas[i]].count), 0);
        needs_[replicas[i]] = {none, none, none};
      }
    }
  }
}

void HeadsAndTails::find_heads() {
  const int last = problem_.stages() - 1;
  for (std::size_t i = 0; i < micro_batches_; ++i) {
    const MicroBatch mb{i};
    const auto job_at = [&](Part part, int stage) -> Job& { return at(part, StageId{stage}, mb); };
    for (int s = 0; s <= last; ++s) {
      if (s > 0) {
        job_at(Part::forward, s).head =
            job_at(Part::forward, s - 1).end() + problem_.activation_seconds(StageId{s}, mb);
      }
      raise_head(Part::forward, place_of(s, mb));
    }
    for (int s = last; s >= 0; --s) {
      if (s < last) {
        job_at(Part::input, s).head =
            job_at(Part::input, s + 1).end() + problem_.gradient_seconds(StageId{s}, mb);
      }
      Job& input = job_at(Part::input, s);
      input.head =
          std::max(input.head, job_at(Part::forward, s).end() + problem_.recompute_seconds(StageId{s}, mb));
      raise_head(Part::input, place_of(s, mb));
      raise_head(Part::weight, place_of(s, mb));
    }
  }
}

void HeadsAndTails::find_tails() {
  const int last = problem_.stages() - 1;
  for (std::size_t i = micro_batches_; i-- > 0;) {
    const MicroBatch mb{i};
    const auto job_at = [&](Part part, int stage) -> Job& { return at(part, StageId{stage}, mb); };
    for (int s = 0; s <= last; ++s) {
      const double flush = flush_[problem_.replica(StageId{s}, mb).rank.index()];
      job_at(Part::weight, s).tail = flush;
      raise_tail(Part::weight, place_of(s, mb));
      job_at(Part::input, s).tail = s == 0 ? flush
                                           : std::max(flush, problem_.gradient_seconds(StageId{s - 1}, mb) +
                                                                 job_at(Part::input, s - 1).whole());
      raise_tail(Part::input, place_of(s, mb));
    }
    for (int s = last; s >= 0; --s) {
      const double flush = flush_[problem_.replica(StageId{s}, mb).rank.index()];
      job_at(Part::forward, s).tail = s == last
                                          ? flush
                                          : std::max(flush, problem_.activation_seconds(StageId{s + 1}, mb) +
                                                                job_at(Part::forward, s + 1).whole());
      Job& forward = job_at(Part::forward, s);
      forward.tail =
          std::max(forward.tail, problem_.recompute_seconds(StageId{s}, mb) + job_at(Part::input, s).whole());
      raise_tail(Part::forward, place_of(s, mb));
    }
  }
}

/// What must be over on the rank before a computation there.
RankCounts HeadsAndTails::before(Part part, const Place& place) const {
  const TimedReplica& replica = problem_.replicas()[place.replica];
  const auto& replicas = problem_.replicas_of(replica.rank);
  const std::size_t own = index_[place.replica];
  const MemoryNeeds& needs = needs_[place.replica];
  const int n = place.number;
  const auto i = to_size(n);
  RankCounts counts(replicas.size());
  counts[own] = {n, needs.inputs_before_forward[i], needs.weights_before_forward[i]};
  if (part != Part::forward) {
    counts[own] = {n + 1, n, std::max(counts[own].weights, needs.weights_before_input[i])};
  }
  if (part == Part::weight) counts[own] = {n + 1, n + 1, n};
  if (!aligned_[replica.rank.index()]) return counts;
  for (std::size_t q = 0; q < replicas.size(); ++q) {
    if (q == own) continue;
    // Forwards come down through the earlier stages, input parts through the later ones.
    const int inputs = q > own ? counts[own].inputs : 0;
    const int forwards = q > own ? inputs : part == Part::forward ? n + 1 : counts[own].forwards;
    counts[q] = {forwards, inputs, 0};
    if (forwards > 0) {
      const MemoryNeeds& others = needs_[replicas[q]];
      const auto latest = to_size(forwards - 1);
      counts[q].inputs = std::max(inputs, others.inputs_before_forward[latest]);
      counts[q].weights = others.weights_before_forward[latest];
      if (inputs > 0) {
        counts[q].weights = std::max(counts[q].weights, others.weights_before_input[to_size(inputs - 1)]);
      }
    }
  }
  // The micro-batch's own input part has come through the later stages as well.
  for (std::size_t q = own + 1; q < replicas.size() && part == Part::input; ++q) {
    counts[q].forwards = std::max(counts[q].forwards, n + 1);
    counts[q].inputs = std::max(counts[q].inputs, n + 1);
  }
  return counts;
}

bool HeadsAndTails::needed(Part part, const Place& place, Part by, const Place& user) const {
  return done(before(by, user)[index_[place.replica]], part) > place.number;
}

void HeadsAndTails::raise_head(Part part, const Place& place) {
  const TimedReplica& replica = problem_.replicas()[place.replica];
  const RankCounts over = before(part, place);
  const auto& replicas = problem_.replicas_of(replica.rank);
  std::vector<Job> jobs;
  for (std::size_t q = 0; q < replicas.size(); ++q) {
    for (const Part of : kParts) {
      const int end = done(over[q], of);
      for (int k = std::max(0, end - kWindow); k < end; ++k)
        jobs.push_back(job(of, problem_.replicas()[replicas[q]], k));
    }
  }
  double& head = at(part, replica.stage, replica.micro_batch(place.number)).head;
  head = std::max(head, earliest_end(std::move(jobs)));
}

void HeadsAndTails::raise_tail(Part part, const Place& place) {
  const TimedReplica& replica = problem_.replicas()[place.replica];
  std::vector<Job> jobs;
  for (const std::size_t q : problem_.replicas_of(replica.rank)) {
    if (q != place.replica && !aligned_[replica.rank.index()]) continue;
    const TimedReplica& other = problem_.replicas()[q];
    for (const Part of : kParts) {
      // The first that needs it; all behind that do as well.
      const int first = least_that(0, other.count, [&](int k) { return needed(part, place, of, {q, k}); });
      for (int k = first; k < std::min(other.count, first + kWindow); ++k) {
        if (job(of, other, k).tail > kNothing) jobs.push_back(job(of, other, k));
      }
    }
  }
  if (jobs.empty()) return;
  double& tail = at(part, replica.stage, replica.micro_batch(place.number)).tail;
  tail = std::max(tail, least_tail(std::move(jobs)));
}

}  // namespace stagecraft::synthesis
