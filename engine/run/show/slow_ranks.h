#pragma once

// A rank that computes longer than planned while others do not: a device that became slow, a core that somebody
// else uses. The whole pipeline waits for it, and nobody sees which one it is.

#include "engine/records/metrics/run_paths.h"
#include "engine/records/report/report.h"
#include "engine/run/resolve/setup.h"
#include "partitioner/plan/cluster.h"
#include "partitioner/plan/profile.h"

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace stagecraft {

/// Measured over predicted time of a rank's forwards and backwards.
struct RankPace {
  Rank rank;
  Seconds measured, predicted;
  [[nodiscard]] double factor() const { return measured / predicted; }
};
/// By rank, of those with both.
[[nodiscard]] std::vector<RankPace> paces(const RunReport& report);

/// What another plan would be made from.
struct PlanSources {
  Profile profile;
  Cluster cluster;
};

/// Of as many ranks, priced with what was measured.
struct BetterPlan {
  Plan plan;
  Seconds gain;  ///< of a step
};

struct SlowNews {
  std::string text;                    ///< what people should know, of each rank once; else ""
  std::optional<BetterPlan> better{};  ///< where another plan is asked for and saves a hundredth
};

/// Tells the ranks that are slow in several looks on end. Holds nothing of the run: a thread that a disk holds up may
/// outlive that.
class SlowRanks {
 public:
  /// A rank is slow that takes so many times as long as planned, measured by the median of the others.
  static constexpr double kSlow = 1.25;
  static constexpr int kLooks = 3;

  /// `names`: by rank. `sources`: none where nothing is to be said of other plans. `replan_when`: in place of kSlow,
  /// where the run itself takes another plan.
  SlowRanks(RunPaths paths, Plan plan, std::vector<std::string> names, std::optional<PlanSources> sources,
            std::optional<double> replan_when = {});

  /// At what all ranks have shown last (live/), off the step's way: reads files, and may plan for half a second.
  /// For ranks that have not shown their part of the newest steps yet it waits while `waits` says so. Throws nothing.
  [[nodiscard]] SlowNews look(const std::function<bool()>& waits = {}) noexcept;

 private:
  /// Whether that is a rank to tell of.
  [[nodiscard]] bool is_off(const RankPace& pace, double others) const;
  [[nodiscard]] std::string told(const RunReport& report, const RankPace& slow, double others) const;
  /// The best one's; absent where there is none to know.
  [[nodiscard]] std::optional<BetterPlan> other_plan(const RunReport& report) const;
  [[nodiscard]] std::string advice(const std::optional<BetterPlan>& other) const;

  RunPaths paths_;
  Plan plan_;
  std::vector<std::string> names_;
  std::optional<PlanSources> sources_;
  std::optional<double> replan_when_;
  std::int64_t newest_ = -1;  ///< step of the last look
  std::map<Rank, int> slow_;  ///< looks on end; beyond kLooks: told
};

/// Of the run. Other plans are made from its profile.json, if it has one.
[[nodiscard]] SlowRanks slow_ranks_of(const RunSetup& setup, const RunPaths& paths);

}  // namespace stagecraft
