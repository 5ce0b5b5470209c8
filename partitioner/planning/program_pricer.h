#pragma once

// Prices cuts by simulating the program that will run: generated and lowered once where the schedule's order
// does not depend on costs, for every cut where it does.

#include "partitioner/planning/cut_search.h"
#include "schedules/schedule.h"
#include "schedules/simulator.h"

#include <memory>
#include <optional>
#include <vector>

namespace stagecraft::planning {

class ProgramPricer : public StepPricer {
 public:
  /// Whole stages with their memory, made when asked for.
  using FullCosts = std::function<StageCosts(int first, int last)>;
  /// Told which stage of a proved program is over the cap, where its rank holds no other.
  using Refused = std::function<void(StageId stage, int first, int last)>;

  /// Keeps references to `costs` and `schedule`. `request` is without costs; its placement is that of
  /// `costs`. `by_replica`: where stages are equally wide, one pipeline stands for all (replica_part.h) if
  /// the order does not follow costs.
  ProgramPricer(const Schedule& schedule, ScheduleRequest request, const PlacedCosts& costs,
                std::vector<double> speed, std::optional<Bytes> capacity, FullCosts full_costs,
                Refused refused, bool by_replica = false);

  [[nodiscard]] double seconds(const std::vector<int>& cuts) override;
  [[nodiscard]] std::optional<StepBound> critical_path() override;
  [[nodiscard]] bool fits(const std::vector<int>& cuts) override;
  [[nodiscard]] std::int64_t work() const override;

  /// Whether a backward of the program is in two parts; for one that depends on the cuts: yes.
  [[nodiscard]] bool split() const { return split_; }

 private:
  void take(const std::vector<int>& cuts, bool with_memory);
  void make_program();

  const Schedule& schedule_;
  ScheduleRequest request_;
  const PlacedCosts& placed_;
  std::optional<Bytes> capacity_;
  FullCosts full_costs_;
  Refused refused_;
  CostTable costs_;
  bool split_ = true;
  bool by_replica_;
  std::optional<PartOf> part_;
  LoweredProgram program_;
  std::optional<Simulator> simulator_;
};

}  // namespace stagecraft::planning
