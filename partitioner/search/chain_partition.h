#pragma once

// Exact min-max partition of a chain into consecutive parts, one per stage: the smallest possible value of the
// largest cost of any part or cut. A dynamic program over (stages left, first layer), after PipeDream
// (SOSP'19, 3.1) without replication; parts may cost differently on different stages, and some may be
// forbidden.
//
// Among the partitions of smallest bottleneck the most even one is taken (smallest sum of squares of the
// parts' costs), and among those the one with the earliest cuts. A bottleneck counts as smallest if it agrees
// with the smallest to twelve digits; sums of squares are compared as they come out, so that of two that
// differ by rounding alone the smaller is taken.

#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>
#include <random>
#include <vector>

namespace stagecraft {

inline constexpr double kForbidden = std::numeric_limits<double>::infinity();

/// `Costs` answers
///   double part(int stage, int first, int last)   the cost of layers [first, last) as that stage, kForbidden
///                                                 if they cannot be
///   double floor(int stage, int first, int last)  never above part(), never falling as `last` grows: where
///                                                 it passes the best found, the search stops
///   double cut(int stage, int layer)              the cost of the cut before `layer`, between stage - 1 and
///                                                 stage; kForbidden where there must be none
/// Takes O(stages * layers^2) at worst; with a tight floor nearer layers^2. Requires 1 <= stages <= layers.
/// Empty when every partition holds something forbidden.
template <class Costs>
class ChainPartitioner {
 public:
  ChainPartitioner(int layers, int stages, const Costs& costs)
      : layers_(layers),
        stages_(stages),
        costs_(costs),
        value_(states(), kForbidden),
        choice_(states(), -1) {}

  /// The first layers of parts 1, 2, ...
  [[nodiscard]] std::optional<std::vector<int>> run() {
    fill<true>(kForbidden);
    const double bottleneck = value_[at(0, 0)];
    if (bottleneck == kForbidden) return std::nullopt;
    value_.assign(states(), kForbidden);
    fill<false>(bottleneck * (1 + 1e-12));
    std::vector<int> cuts;
    for (int stage = 0, first = 0; stage + 1 < stages_; ++stage) {
      first = choice_[at(stage, first)];
      cuts.push_back(first);
    }
    return cuts;
  }

  /// All of smallest bottleneck, if there are no more than `most`; otherwise so many of them, drawn at random, the
  /// same every time.
  [[nodiscard]] std::vector<std::vector<int>> ties(std::size_t most) {
    value_.assign(states(), kForbidden);
    fill<true>(kForbidden);
    const double bottleneck = value_[at(0, 0)] * (1 + 1e-12);
    if (value_[at(0, 0)] == kForbidden) return {};
    value_.assign(states(), 0);  // ways to give layers [first, end) to the stages from `stage` on
    for (int stage = stages_ - 1; stage >= 0; --stage) {
      for (int first = stage; first <= (stage == 0 ? 0 : layers_ - stages_ + stage); ++first) {
        double& ways = value_[at(stage, first)];
        if (stage + 1 == stages_) {
          ways = costs_.part(stage, first, layers_) <= bottleneck ? 1 : 0;
          continue;
        }
        each_next(stage, first, bottleneck, [&](int last) { ways += value_[at(stage + 1, last)]; });
      }
    }
    std::vector<std::vector<int>> all;
    std::vector<int> cuts;
    if (value_[at(0, 0)] <= static_cast<double>(most)) {
      list(0, 0, bottleneck, cuts, all);
      return all;
    }
    std::mt19937_64 random(1);  // NOLINT(bugprone-random-generator-seed): the same cuts every time
    while (all.size() < most) {
      cuts.clear();
      for (int stage = 0, first = 0; stage + 1 < stages_; ++stage) {
        double draw = static_cast<double>(random() >> 11U) * 0x1p-53 * value_[at(stage, first)];
        int next = -1;
        each_next(stage, first, bottleneck, [&](int last) {
          const double ways = value_[at(stage + 1, last)];
          if (ways == 0 || (next >= 0 && draw < 0)) return;
          next = last;
          draw -= ways;
        });
        first = next;
        cuts.push_back(first);
      }
      all.push_back(cuts);
    }
    return all;
  }

 private:
  template <class Visit>
  void each_next(int stage, int first, double bound, const Visit& visit) const {
    for (int last = first + 1; last <= layers_ - (stages_ - 1 - stage); ++last) {
      if (costs_.floor(stage, first, last) > bound) return;
      if (costs_.cut(stage + 1, last) <= bound && costs_.part(stage, first, last) <= bound) visit(last);
    }
  }
  void list(int stage, int first, double bound, std::vector<int>& cuts,
            std::vector<std::vector<int>>& all) const {
    if (stage + 1 == stages_) {
      all.push_back(cuts);
      return;
    }
    each_next(stage, first, bound, [&](int last) {
      if (value_[at(stage + 1, last)] == 0) return;
      cuts.push_back(last);
      list(stage + 1, last, bound, cuts, all);
      cuts.pop_back();
    });
  }

  [[nodiscard]] std::size_t states() const { return to_size(stages_) * to_size(layers_); }
  [[nodiscard]] std::size_t at(int stage, int first) const {
    return to_size(stage) * to_size(layers_) + to_size(first);
  }

  /// value(stage, first): the best way to give layers [first, end) to the stages from `stage` on. Nothing
  /// above `bound` is used. Minimizes the maximum, whose best so far bounds the search too, or the squares' sum.
  template <bool minimize_max>
  void fill(double bound) {
    const auto combine = [](double part, double rest) {
      return minimize_max ? std::max(part, rest) : part * part + rest;
    };
    for (int stage = stages_ - 1; stage >= 0; --stage) {
      const int stages_behind = stages_ - 1 - stage;
      const int latest_first = stage == 0 ? 0 : layers_ - 1 - stages_behind;
      for (int first = stage; first <= latest_first; ++first) {
        double& best = value_[at(stage, first)];
        if (stages_behind == 0) {
          const double part = costs_.part(stage, first, layers_);
          if (part <= bound) best = combine(part, 0);
          continue;
        }
        for (int last = first + 1; last <= layers_ - stages_behind; ++last) {
          const double floor = costs_.floor(stage, first, last);
          if (floor > bound || (minimize_max && floor >= best)) break;
          const double rest = value_[at(stage + 1, last)];
          if (rest >= best) continue;
          const double cut = costs_.cut(stage + 1, last);
          if (cut > bound || (minimize_max && cut >= best)) continue;
          const double part = costs_.part(stage, first, last);
          if (part > bound || part == kForbidden) continue;
          const double value = combine(part, minimize_max ? std::max(cut, rest) : rest);
          if (value < best) {
            best = value;
            choice_[at(stage, first)] = last;
          }
        }
      }
    }
  }

  int layers_;
  int stages_;
  const Costs& costs_;
  std::vector<double> value_;
  std::vector<int> choice_;
};

}  // namespace stagecraft
