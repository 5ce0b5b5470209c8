#pragma once

// Which stages may be, and which forwards each repeats: the least that makes it fit.
//
// Of the settings allowed a stage takes the first that its memory lets through. Repeating more never makes a
// program of a given order faster, and a rank's memory depends on no other rank's settings, so that is also
// what is fastest. Stages that share a rank have the same setting; so it is of a family, as layouts are: for
// each of them on its own there is no least. What fits is known from a bound of memory before a program
// exists, and from its proof afterwards: what that refuses goes on to the next setting.

#include "schedules/program/recompute.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <unordered_map>
#include <vector>

namespace stagecraft::planning {

/// One setting, or all for the planner to choose from (absent): from least time to least memory.
[[nodiscard]] std::vector<Recompute> allowed_settings(std::optional<Recompute> asked);

class StageSettings {
 public:
  /// Whether layers [first, last) may fit as that stage, as far as is known without a program; empty: always.
  using Possible = std::function<bool(Recompute setting, StageId stage, int first, int last)>;

  /// `allowed` from least time to least memory, not empty. `alone` says whether a rank's memory depends on
  /// its own layers only: not where the order of a program follows the costs of all stages.
  StageSettings(Placement placement, int layers, std::vector<Recompute> allowed, Possible possible = {},
                bool alone = true);

  [[nodiscard]] Recompute fastest() const { return allowed_.front(); }
  [[nodiscard]] Recompute least_memory() const { return allowed_.back(); }
  /// The least setting of a stage of these layers, as far as is known now; none: it fits with none.
  [[nodiscard]] std::optional<Recompute> least(StageId stage, int first, int last) const;
  /// Of all stages, ranks' stages alike; none: some stage fits with none.
  [[nodiscard]] std::optional<RecomputeSettings> least(const std::vector<int>& cuts) const;
  /// What to try after the memory of some ranks was refused; none: nothing is left to try.
  [[nodiscard]] std::optional<RecomputeSettings> after_refusal(const std::vector<int>& cuts,
                                                               const RecomputeSettings& refused,
                                                               const std::vector<Rank>& over);

 private:
  [[nodiscard]] std::size_t place_of(Recompute setting) const;
  [[nodiscard]] std::uint64_t key(StageId stage, int first, int last) const;
  [[nodiscard]] static int first_of(const std::vector<int>& cuts, StageId stage) {
    return stage.value == 0 ? 0 : cuts[stage.index() - 1];
  }
  [[nodiscard]] int last_of(const std::vector<int>& cuts, StageId stage) const {
    return stage.index() == cuts.size() ? layers_ : cuts[stage.index()];
  }

  int layers_;
  std::vector<Recompute> allowed_;
  Possible possible_;
  bool alone_;
  std::vector<std::vector<StageId>> held_;                  // a rank; of several with the same stages one
  std::unordered_map<std::uint64_t, std::size_t> next_of_;  // stages refused: first setting to try
};

}  // namespace stagecraft::planning
