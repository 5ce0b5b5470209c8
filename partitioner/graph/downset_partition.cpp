#include "stagecraft/partitioner/graph/downset_partition.h"

#include "stagecraft/base/error.h"
#include "stagecraft/partitioner/compare_costs.h"

#include <algorithm>

namespace stagecraft {
namespace {

double weighed(const NodeFactors& factors, const NodeSums& sums) {
  return factors.forward * sums.forward + factors.backward_input * sums.backward_input +
         factors.backward_weight * sums.backward_weight + factors.parameters * sums.parameters;
}

NestedCuts cuts_to(int all, int stages, const std::function<int(int downset, int stage)>& from) {
  NestedCuts cuts(to_size(stages - 1));
  for (int stage = stages - 1, at = all; stage > 0; --stage) {
    at = from(at, stage);
    cuts[to_size(stage - 1)] = at;
  }
  return cuts;
}

bool may_cut(const Downsets& downsets, const CutWindows& windows, std::size_t stage, int downset) {
  return windows.empty() || windows[stage - 1].holds(downsets.sums(downset).compute());
}

/// Whether there are stages of which none takes more than `most`.
class BottleneckTest {
 public:
  BottleneckTest(const Downsets& downsets, const BottleneckProblem& problem)
      : downsets_(downsets),
        problem_(problem),
        stages_(to_size(problem.stages())),
        lines_(problem.lines.front().size()),
        values_(to_size(downsets.size()) * stages_ * lines_),
        from_(to_size(downsets.size()) * stages_) {
    const std::size_t blocks = downsets.blocks().size();
    for (std::size_t s = 0; s < stages_; ++s) {
      for (std::size_t b = 0; b < blocks; ++b) {
        for (const StageLine& line : problem.lines[s]) {
          added_.push_back(weighed(line.own, downsets.of_block(static_cast<int>(b))));
        }
      }
      // The last line is that of all the stage's work.
      const NodeFactors& own = problem.lines[s].back().own;
      factors_.push_back(std::min({own.forward, own.backward_input, own.backward_weight}));
    }
    share_behind_.assign(stages_ + 1, 0);
    for (std::size_t s = stages_; s-- > 0;) {
      share_behind_[s] = share_behind_[s + 1] + (factors_[s] > 0 ? 1 / factors_[s] : kInfinite);
    }
    work_ = downsets.sums(downsets.all()).compute();
  }

  [[nodiscard]] bool run(double most) {
    most_ = most;
    next_ = kInfinite;
    std::fill(values_.begin(), values_.end(), kInfinite);
    std::fill(from_.begin(), from_.end(), -1);
    std::vector<double> values(lines_);
    for (int downset = 0; downset < downsets_.all(); ++downset) {
      for (std::size_t s = 0; s < stages_; ++s) {
        const bool opens = s == 0 ? downset == 0 : ends(downset, s - 1);
        const double* known = value(downset, s);
        int from = from_[place(downset, s)];
        std::copy(known, known + lines_, values.begin());
        if (opens) {
          for (std::size_t n = 0; n < lines_; ++n) {
            const double begun = begin(problem_.lines[s][n], downset);
            if (!(begun < values[n])) continue;
            values[n] = begun;
            if (n == 0) from = downset;
          }
        }
        if (from >= 0) extend(downset, s, values, from);
      }
    }
    return from_[place(downsets_.all(), stages_ - 1)] >= 0;
  }
  /// After a run that found none: with any `most` below this there is none either.
  [[nodiscard]] double next() const { return next_; }
  /// After one that did.
  [[nodiscard]] NestedCuts cuts() const {
    return cuts_to(downsets_.all(), problem_.stages(),
                   [&](int downset, int stage) { return from_[place(downset, to_size(stage))]; });
  }

 private:
  [[nodiscard]] std::size_t place(int downset, std::size_t stage) const {
    return to_size(downset) * stages_ + stage;
  }
  [[nodiscard]] double* value(int downset, std::size_t stage) {
    return &values_[place(downset, stage) * lines_];
  }

  [[nodiscard]] double begin(const StageLine& line, int downset) const {
    return line.constant + weighed(line.before, downsets_.sums(downset)) +
           line.seconds_per_byte * downsets_.crossing(downset);
  }
  /// Whether the stage can end behind the downset.
  [[nodiscard]] bool ends(int downset, std::size_t stage) {
    if (from_[place(downset, stage)] < 0) return false;
    if (!may_cut(downsets_, problem_.windows, stage + 1, downset)) return false;
    if (!problem_.boundary) return true;
    return allows(problem_.boundary(static_cast<int>(stage) + 1, downsets_.crossing(downset)));
  }
  [[nodiscard]] bool allows(double seconds) {
    if (seconds <= most_) return true;
    next_ = std::min(next_, seconds);
    return false;
  }

  void extend(int downset, std::size_t stage, const std::vector<double>& values, int from) {
    for (const Downsets::Step& step : downsets_.steps(downset)) {
      const double* added = &added_[(stage * downsets_.blocks().size() + to_size(step.block)) * lines_];
      double highest = 0;
      for (std::size_t n = 0; n < lines_; ++n) highest = std::max(highest, values[n] + added[n]);
      if (!allows(highest)) continue;
      // What is left has to go into this stage and those behind it.
      const double left = work_ - downsets_.sums(step.to).compute();
      const double last = values[lines_ - 1] + added[lines_ - 1];
      if (factors_[stage] > 0) {
        const double least = (left + last / factors_[stage]) / share_behind_[stage] * (1 - kRounding);
        if (!allows(least)) continue;
      }
      double* best = value(step.to, stage);
      int& best_from = from_[place(step.to, stage)];
      for (std::size_t n = 0; n < lines_; ++n) {
        const double here = values[n] + added[n];
        if (!(here < best[n])) continue;
        best[n] = here;
        if (n == 0) best_from = from;
      }
    }
  }

  const Downsets& downsets_;
  const BottleneckProblem& problem_;
  std::size_t stages_;
  std::size_t lines_;
  std::vector<double> values_;        // per downset, stage and line: the least the stage can have come to
  std::vector<int> from_;             // where that one began; -1: it cannot
  std::vector<double> added_;         // per stage, block and line
  std::vector<double> factors_;       // per stage: its busy time is at least so much a second of compute
  std::vector<double> share_behind_;  // of compute that a second allows from a stage on
  double work_ = 0;
  double most_ = 0;
  double next_ = kInfinite;
};

/// All its lines and boundaries.
double bottleneck(const Downsets& downsets, const BottleneckProblem& problem, const NestedCuts& cuts) {
  double most = 0;
  for (std::size_t s = 0; s < problem.lines.size(); ++s) {
    const int first = s == 0 ? 0 : cuts[s - 1];
    const int last = s == cuts.size() ? downsets.all() : cuts[s];
    for (const StageLine& line : problem.lines[s])
      most = std::max(most, value_of(downsets, line, first, last));
    if (s > 0 && problem.boundary) {
      most = std::max(most, problem.boundary(static_cast<int>(s), downsets.crossing(first)));
    }
  }
  return most;
}

}  // namespace

double value_of(const Downsets& downsets, const StageLine& line, int first, int last) {
  NodeSums held = downsets.sums(last);
  held -= downsets.sums(first);
  return line.constant + weighed(line.before, downsets.sums(first)) +
         line.seconds_per_byte * downsets.crossing(first) + weighed(line.own, held);
}

BottleneckResult least_bottleneck(const Downsets& downsets, const BottleneckProblem& problem, double at_least,
                                  double below, double tolerance) {
  STAGECRAFT_CHECK(to_size(problem.stages()) <= downsets.blocks().size(), "a block for every stage");
  BottleneckTest test(downsets, problem);
  BottleneckResult result;
  double low = at_least;
  double high = below;
  double most = below * (1 - kRounding);
  if (below == kInfinite) most = std::numeric_limits<double>::max();
  for (;;) {
    if (low > most) break;
    if (test.run(most)) {
      result.cuts = test.cuts();
      result.seconds = bottleneck(downsets, problem, *result.cuts);
      high = std::min(most, result.seconds);
    } else {
      low = std::max(low, std::min(test.next(), high));
    }
    if (low >= high * (1 - std::max(tolerance, kRounding))) break;
    most = low + (high - low) / 2;
  }
  result.bound = std::min(low, high);
  return result;
}

CheapestResult cheapest(const Downsets& downsets, const std::vector<StageLine>& lines,
                        const CutWindows& windows) {
  const std::size_t stages = lines.size();
  STAGECRAFT_CHECK(stages <= downsets.blocks().size(), "a block for every stage");
  const std::size_t blocks = downsets.blocks().size();
  std::vector<double> added;
  for (const StageLine& line : lines) {
    for (std::size_t b = 0; b < blocks; ++b) {
      added.push_back(weighed(line.own, downsets.of_block(static_cast<int>(b))));
    }
  }
  std::vector<double> values(to_size(downsets.size()) * stages, kInfinite);
  std::vector<int> from(values.size(), -1);
  for (int downset = 0; downset < downsets.all(); ++downset) {
    const std::size_t here = to_size(downset) * stages;
    for (std::size_t s = 0; s < stages; ++s) {
      double least = values[here + s];
      int begun = from[here + s];
      double opened = kInfinite;
      if (s == 0 && downset == 0) opened = lines[0].constant;
      if (s > 0 && may_cut(downsets, windows, s, downset)) {
        opened =
            values[here + s - 1] + lines[s].constant + lines[s].seconds_per_byte * downsets.crossing(downset);
      }
      if (opened < least) {
        least = opened;
        begun = downset;
      }
      if (begun < 0) continue;
      for (const Downsets::Step& step : downsets.steps(downset)) {
        const std::size_t to = to_size(step.to) * stages + s;
        const double seconds = least + added[s * blocks + to_size(step.block)];
        if (!(seconds < values[to])) continue;
        values[to] = seconds;
        from[to] = begun;
      }
    }
  }
  const std::size_t end = to_size(downsets.all()) * stages + stages - 1;
  if (values[end] == kInfinite) return {{}, kInfinite};
  return {cuts_to(downsets.all(), static_cast<int>(stages),
                  [&](int downset, int stage) { return from[to_size(downset) * stages + to_size(stage)]; }),
          values[end]};
}

}  // namespace stagecraft
