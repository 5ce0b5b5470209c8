#pragma once

// Cuts for several stages per rank, by local search: first such as fit, then faster ones.
//
// What branch and bound needs is missing there. Whether a rank fits depends on all its stages, which lie far apart in
// the chain; and where the order of a program follows the costs, no bound is tight. But with a program as it stands,
// any other cuts are priced at once: its memory by forms (schedules/checker/peak_forms.h), its time by a simulation or,
// sooner, by the critical paths of those before, each of which bounds the time of all cuts from below. So
//   1. layers are moved from ranks that need too much to others, until all fit;
//   2. layers are moved to shorten the simulated step, in strides of many layers first. A move takes
//      neighbouring cuts along, so that layers come from any stage to any other, and those between keep their size;
//   3. where another program belongs to the new cuts, it is made, and the same begins again.
// It begins at the seeds handed in and at cuts even by time, by memory and by mixtures, and goes on from the best
// with random moves until its budget is spent. The same request gives the same cuts.

#include "partitioner/plan/compare_costs.h"
#include "partitioner/search/cut_search.h"
#include "partitioner/search/program_pricer.h"
#include "partitioner/search/stage_settings.h"
#include "partitioner/search/stage_table.h"

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <random>
#include <set>
#include <vector>

namespace stagecraft::planning {

struct CutDescentProblem {
  const PlacedCosts& costs;
  StageTable& stages;
  StageSettings& settings;
  int cuttable;                     ///< cuts lie before layers 1 to `cuttable` - 1
  std::optional<Bytes> capacity{};  ///< absent: no cap
  bool orders_by_time = false;
  bool first_that_fits = false;  ///< ends with it
  int gradient_from = 0;         ///< the first layer that is not frozen
};

class CutDescent {
 public:
  /// Keeps references to what the problem refers to, and to `pricer`.
  CutDescent(const CutDescentProblem& problem, ProgramPricer& pricer);

  struct Result {
    std::optional<std::vector<int>> cuts;  ///< that fit and are below `to_beat`, if any were found
    RecomputeSettings settings;
    double seconds = kInfinite;
    std::int64_t simulated = 0, work = 0;
    CutSearchResult::Nearest nearest;
  };
  [[nodiscard]] Result run(double to_beat, const CutSearchBudget& budget,
                           const std::vector<std::vector<int>>& seeds);

 private:
  using Cuts = std::vector<int>;

  /// Cuts with what a program says of them.
  struct State {
    Cuts cuts;
    double over = 0;  ///< squares of what ranks miss, as shares of the cap
    double seconds = kInfinite;
    [[nodiscard]] bool better_than(const State& other) const {
      return over != other.over ? over < other.over : clearly_less(seconds, other.seconds);
    }
  };
  /// A run of cuts that shifts by so many layers; `timed`: those behind the first by as much time as it.
  struct Move {
    int low, high, by;
    bool timed;
  };

  [[nodiscard]] std::optional<Cuts> moved(const Cuts& cuts, const Move& move) const;
  [[nodiscard]] std::vector<Move> moves(int stride);
  [[nodiscard]] int first(const Cuts& cuts, int stage) const {
    return stage == 0 ? 0 : cuts[to_size(stage - 1)];
  }
  [[nodiscard]] int last(const Cuts& cuts, int stage) const {
    return stage + 1 == stages_ ? layers_ : cuts[to_size(stage)];
  }

  /// With the program as it is made. `caps`: the cap of every rank, less its margin.
  [[nodiscard]] Bytes peak(std::size_t rank, const Cuts& cuts);
  [[nodiscard]] double over(const Cuts& cuts, bool with_margins);
  [[nodiscard]] double missed(std::size_t rank, Bytes peak, bool with_margins) const;
  void fit(Cuts& cuts);
  void hasten(Cuts& cuts);

  /// Makes the program of these cuts, and takes note of them.
  State price(const Cuts& cuts);
  void climb(const Cuts& from);
  void polish();
  [[nodiscard]] bool try_best(std::vector<Cuts> all, std::size_t most);
  [[nodiscard]] Cuts shaken(Cuts cuts, int most_stride);
  [[nodiscard]] std::vector<Cuts> even_cuts();
  [[nodiscard]] std::vector<Cuts> cuts_at_frozen() const;
  void add_min_max(int first, int last, int stages, Cuts& cuts) const;
  template <class Weight>
  [[nodiscard]] Cuts even_by(const Weight& weight) const;
  [[nodiscard]] Cuts mixed(double time, double kept, double weights);
  [[nodiscard]] Cuts scattered();

  [[nodiscard]] bool out_of_budget();
  [[nodiscard]] bool stalls_at(std::int64_t work) const;
  [[nodiscard]] std::int64_t spent() const { return pricer_.work() - work_before_ + own_work_; }
  [[nodiscard]] int random_below(int n) {
    return static_cast<int>(random_() % static_cast<std::uint64_t>(n));
  }

  const CutDescentProblem problem_;
  ProgramPricer& pricer_;
  int layers_, stages_;
  RecomputeSettings settings_;                 // of the program as it is made
  std::vector<double> margins_;                // of each of its ranks, a share of the cap
  std::vector<std::array<double, 3>> shares_;  // of each layer: of all time, kept bytes and weights
  std::vector<StepBound> paths_;
  std::size_t next_path_ = 0;
  std::set<Cuts> tried_;       // by try_best
  std::mt19937_64 random_{1};  // NOLINT(bugprone-random-generator-seed): the same request, the same cuts
  State best_;                 // of all, fit or not
  RecomputeSettings best_settings_;
  CutSearchResult::Nearest least_{{}, kInfinite, Bytes{std::numeric_limits<std::int64_t>::max()}};
  CutSearchBudget budget_;
  std::int64_t work_before_ = 0, own_work_ = 0, asked_ = 0, simulated_ = 0;
  std::int64_t begun_at_ = 0, improved_at_ = 0;  // spent by the end of the first climbs, and for the best
  bool stopped_ = false;
};

}  // namespace stagecraft::planning
