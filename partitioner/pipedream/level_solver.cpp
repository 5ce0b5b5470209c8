#include "partitioner/pipedream/level_solver.h"

#include "base/error.h"

#include <algorithm>
#include <cmath>

namespace stagecraft::pipedream {
namespace {

/// Bytes that all-reduce moves over a machine's link for each byte of parameters, forth and back: its 4
/// (m-1)/m.
double all_reduce_bytes(int machines) { return 4.0 * (machines - 1) / machines; }

}  // namespace

bool KnownPlan::allows(double compute, double devices) const {
  if (seconds == kImpossible) return true;
  const double each = devices * seconds;
  return std::max(1.0, std::ceil(compute / each)) * each - slack <= compute;
}

LevelSolver::LevelSolver(const StateGraph& states, const Options& options, std::size_t level,
                         const Stretches& within)
    : states_(states),
      options_(options),
      level_(options.levels[level]),
      within_(within),
      machines_within_(level == 0 ? 1 : options.levels[level - 1].machines),
      most_replicas_(options.straight ? 1 : level_.machines) {
  for (std::size_t l = 0; l < options.levels.size(); ++l) {
    if (l < level) devices_within_ *= options.levels[l].machines;
    if (l > level) copies_ *= options.levels[l].machines;
  }
  for (int m = 1; m <= most_replicas_; ++m) {
    share_.push_back(1.0 / m);
    per_byte_.push_back(all_reduce_bytes(m) / level_.bytes_per_second / m);
  }
  for (int state = 0; state < static_cast<int>(states.states.size()); ++state) {
    for (int m = 1; m <= most_replicas_; ++m) transfers_.push_back(transfer(state, m));
  }
}

double LevelSolver::transfer(int state, int replicas) const {
  if (!options_.compression || state + 1 == static_cast<int>(states_.states.size())) return 0;
  return 2.0 * states_.at(state).output / (level_.bytes_per_second * replicas) / *options_.compression;
}

double LevelSolver::all_reduce(Begin begin, int state, int replicas, bool first) const {
  const double time = all_reduce_bytes(replicas) * parameters(begin, state) / level_.bytes_per_second;
  return first ? time / machines_within_ : time;
}

bool LevelSolver::fits(Begin begin, int state, int replicas, int used) const {
  if (!options_.memory) return true;
  const double kept = states_.between(begin, state, &State::activations) + parameters(begin, state);
  return kept * std::ceil(static_cast<double>(level_.machines - used) / replicas) <= *options_.memory;
}

double LevelSolver::first_stage(Begin begin, int state, int machines) const {
  const double compute = within_.at(begin, state);
  if (compute == kImpossible || machines > most_replicas_ || !fits(begin, state, machines, machines)) {
    return kImpossible;
  }
  return (compute + all_reduce(begin, state, machines, true)) / machines;
}

double LevelSolver::later_stage(int cut, int state, int replicas) const {
  const auto m = to_size(replicas - 1);
  const auto most = to_size(most_replicas_);
  const double transfer =
      std::max(transfers_[to_size(cut) * most + m], transfers_[to_size(state) * most + m]);
  return std::max(within_.at(cut + 1, state) * share_[m] + parameters(cut + 1, state) * per_byte_[m],
                  transfer);
}

std::pair<int, int> LevelSolver::useful_machines(double compute, int most, const KnownPlan& known) const {
  if (known.seconds == kImpossible) return {1, most};
  const double each = devices_within_ * known.seconds;  // of compute, a machine that is not copied
  const double least = std::max(1.0, std::ceil(compute / (each * copies_)));
  const double largest = std::min<double>(most, (compute + known.slack) / each);
  if (least > largest) return {1, 0};
  return {static_cast<int>(least), static_cast<int>(largest)};
}

/// With machines left over a stretch is never slower than on fewer.
void LevelSolver::keep_fewer(int state, Bottlenecks& solved) const {
  for (int machines = 2; machines <= level_.machines; ++machines) {
    const double* fewer = solved.row(state, machines - 1);
    double* row = solved.row(state, machines);
    for (std::size_t b = 0; b < solved.begins().size(); ++b) row[b] = std::min(row[b], fewer[b]);
  }
}

Bottlenecks LevelSolver::solve(std::vector<Begin> begins, const KnownPlan& known) const {
  const int states = static_cast<int>(states_.states.size());
  const int machines = level_.machines;
  const std::size_t width = begins.size();
  const double limit = known.seconds * copies_;
  Bottlenecks solved(std::move(begins), states_.states.size(), machines);
  std::vector<char> possible(states_.states.size());  // from any of the beginnings
  // What the rest before a cut may run on: the least from its latest beginning, the most from its earliest.
  std::vector<std::pair<int, int>> rest_machines(states_.states.size());
  double earliest = kImpossible;  // compute before the beginnings
  double latest = 0;
  for (const Begin begin : solved.begins()) {
    const double before = begin == 0 ? 0 : states_.at(begin - 1).compute;
    earliest = std::min(earliest, before);
    latest = std::max(latest, before);
  }
  for (int state = 0; state < states; ++state) {
    for (std::size_t b = 0; b < width; ++b) {
      const Begin begin = solved.begins()[b];
      if (within_.at(begin, state) == kImpossible) continue;
      possible[to_size(state)] = 1;
      for (int m = 1; m <= machines; ++m) solved.row(state, m)[b] = first_stage(begin, state, m);
    }
    if (possible[to_size(state)] == 0) continue;
    const double until = states_.at(state).compute;
    rest_machines[to_size(state)] = {useful_machines(std::max(0.0, until - latest), machines, known).first,
                                     useful_machines(until - earliest, machines, known).second};
    for (const int cut : states_.contained[to_size(state)]) {
      if (possible[to_size(cut)] == 0) continue;
      const double compute = until - states_.at(cut).compute;
      const auto [fewest, most] = useful_machines(compute, std::min(most_replicas_, machines - 1), known);
      if (fewest > most) continue;
      const auto [least_rest, most_rest] = rest_machines[to_size(cut)];
      for (int replicas = fewest; replicas <= most; ++replicas) {
        if (!known.allows(compute, replicas * devices_within_)) continue;
        const double time = later_stage(cut, state, replicas);
        if (!(time <= limit)) continue;
        // On `used` machines together; the values of successive ones lie behind each other.
        const auto improve = [&](int from_used, int to_used) {
          const double* rest = solved.row(cut, from_used - replicas);
          double* best = solved.row(state, from_used);
          const std::size_t count = to_size(to_used - from_used + 1) * width;
          for (std::size_t n = 0; n < count; ++n) best[n] = std::min(best[n], std::max(rest[n], time));
        };
        const int from = replicas + std::max(1, least_rest);
        const int to = std::min(machines, replicas + most_rest);
        if (!options_.memory) {
          if (from <= to) improve(from, to);
          continue;
        }
        for (int used = from; used <= to; ++used) {
          if (fits(cut + 1, state, replicas, used)) improve(used, used);
        }
      }
    }
    if (options_.fewer_machines) keep_fewer(state, solved);
  }
  return solved;
}

LastStage LevelSolver::last_stage(const Bottlenecks& solved, std::size_t n, int state, int machines) const {
  const double value = solved.at(n, state, machines);
  STAGECRAFT_CHECK(value != kImpossible, "only what is possible comes about");
  if (first_stage(solved.begins()[n], state, machines) == value) return {-1, machines, machines};
  if (options_.fewer_machines && machines > 1 && solved.at(n, state, machines - 1) == value) {
    return last_stage(solved, n, state, machines - 1);
  }
  for (const int cut : states_.contained[to_size(state)]) {
    for (int replicas = 1; replicas <= std::min(most_replicas_, machines - 1); ++replicas) {
      if (!fits(cut + 1, state, replicas, machines)) continue;
      const double rest = solved.at(n, cut, machines - replicas);
      if (std::max(rest, later_stage(cut, state, replicas)) == value) {
        return {cut, replicas, machines};
      }
    }
  }
  STAGECRAFT_CHECK(false, "a value that no last stage gives");
}

}  // namespace stagecraft::pipedream
