#pragma once

// Prices cuts by simulating the program that will run: generated and lowered once where the schedule's order
// does not depend on costs, for every cut where it does. Programs that differ in what is repeated are the
// same otherwise (TickClock in schedules/lowering/transfer_run.h), so the critical path of one bounds them
// all.

#include "partitioner/search/program_facts.h"
#include "partitioner/search/step_bound.h"
#include "schedules/checker/peak_forms.h"
#include "schedules/generators/schedule.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace stagecraft::planning {

/// Nanoseconds, about, of a rank's peak by its forms.
inline constexpr std::int64_t kPeakWork = 600;
/// And per action: proved, and generated, lowered and made ready to be simulated.
inline constexpr std::int64_t kProved = 300, kMade = 2'000;

class ProgramPricer {
 public:
  /// Whole stages with their memory, made when asked for.
  using FullCosts = std::function<StageCosts(int first, int last)>;

  /// Keeps references to `costs` and `schedule`. `request` is without costs; its placement is that of
  /// `costs`, its settings the ones to begin with. `by_replica`: where stages are equally wide, one
  /// pipeline stands for all (replica_part.h). `facts`, which it refers to: of the model.
  ProgramPricer(const Schedule& schedule, ScheduleRequest request, const PlacedCosts& costs,
                std::optional<Bytes> capacity, FullCosts full_costs, const ProgramFacts& facts,
                bool by_replica = false);
  ~ProgramPricer();

  /// Simulated seconds with these cuts and settings: from one step to the next, where ranks go on from one to the
  /// next without waiting for each other, else of a step.
  [[nodiscard]] double seconds(const std::vector<int>& cuts, const RecomputeSettings& settings);
  /// A bound of all cuts and settings, tight at those priced last; none where the program depends on the
  /// cuts.
  [[nodiscard]] std::optional<StepBound> critical_path();
  /// With the program that was priced last as it stands, although another one may be made for these cuts.
  [[nodiscard]] double seconds_as_made(const std::vector<int>& cuts);
  /// A bound of all cuts for that program, tight at those priced last.
  [[nodiscard]] StepBound path_as_made();
  /// What that program's ranks need.
  [[nodiscard]] const PeakForms& peaks_as_made();
  /// What its rank that needs most needs with these cuts.
  [[nodiscard]] Bytes most_memory_as_made(const std::vector<int>& cuts);
  /// Actions of that program.
  [[nodiscard]] std::int64_t actions_as_made() const;
  [[nodiscard]] Bytes loss() const { return costs_.loss; }
  /// Ranks whose memory is proved to be over the cap.
  [[nodiscard]] std::vector<Rank> over_cap(const std::vector<int>& cuts, const RecomputeSettings& settings);
  /// Spent so far: about nanoseconds.
  [[nodiscard]] std::int64_t work() const { return work_; }

  [[nodiscard]] bool goes_on() const { return goes_on_; }
  /// Whether all cuts have the same program.
  [[nodiscard]] bool one_program() const { return !schedule_.orders_by_time && facts_.one_program(); }
  /// Whether a backward of the program is in two parts; for one that depends on the cuts: yes.
  [[nodiscard]] bool split() const { return split_; }

 private:
  struct Made;

  void take(const std::vector<int>& cuts, bool with_memory);
  /// Seconds with `costs_` as they are.
  [[nodiscard]] double priced(Made& made);
  /// Makes the program of these settings, and of the stages that were taken, the current one.
  void select(const RecomputeSettings& settings);
  [[nodiscard]] std::unique_ptr<Made> make(const RecomputeSettings& settings);
  /// Whether it is the program of these settings and of the stages that were taken.
  [[nodiscard]] bool is_of(const Made& made, const RecomputeSettings& settings) const;

  const Schedule& schedule_;
  ScheduleRequest request_;
  const PlacedCosts& placed_;
  std::optional<Bytes> capacity_;
  const ProgramFacts& facts_;
  FullCosts full_costs_;
  CostTable costs_;
  bool split_ = true;
  bool by_replica_;
  bool goes_on_;                             // from one step to the next
  bool ordered_;                             // counts as what it takes to order by time
  std::vector<std::unique_ptr<Made>> made_;  // the current one last, before it the ones used lately
  std::int64_t work_ = 0;
};

}  // namespace stagecraft::planning
