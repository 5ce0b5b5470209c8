#pragma once

// Would another plan pay? A run has measured its stages; where they are slower or faster than the profile
// said, either the device is (a straggler), or the layers are. One run cannot tell which, so both are
// answered.

#include "partitioner/search/planner.h"

#include <optional>
#include <vector>

namespace stagecraft {

/// One stage as the run had it, on its own rank: medians of single actions.
struct MeasuredStage {
  Seconds forward;   ///< of one micro-batch
  Seconds backward;  ///< both halves of one micro-batch
  Seconds step;      ///< optimizer update
};

/// What the difference to the profile is put down to.
enum class Attribution : std::uint8_t {
  devices,  ///< every device has a speed of its own, its layers' times as profiled
  layers,   ///< the layers of a stage take longer or shorter in the same proportion, wherever they are
};

template <>
inline constexpr std::array enum_names<Attribution>{"devices", "layers"};

/// The answer under one of the two.
struct Replanned {
  Attribution blame;
  std::vector<double> factors;  ///< measured over expected time: a rank (devices) or a stage (layers)
  Plan present;                 ///< the running plan, priced with what was measured
  PlanResult result;            ///< the best of what the planner finds for that; may be worse than `present`

  /// A step's time that the planner's best plan saves; never negative.
  [[nodiscard]] Seconds gain() const;
  /// Steps after which a change that takes `cost` has paid for itself; absent when nothing is gained.
  [[nodiscard]] std::optional<double> break_even(Seconds cost) const;
};

enum class ReplannedRanks : std::uint8_t { any, as_now };

/// One answer for each Attribution. The new plans have the running one's schedule, micro-batches, stages per rank and
/// recomputation (chosen anew for every stage where its stages differ). Throws
/// InputError for a plan without costs or with replicas, a profile of another model, a cluster of too few
/// devices; RefusedError when nothing fits the cluster's memory.
[[nodiscard]] std::vector<Replanned> replan(const Plan& running, const std::vector<MeasuredStage>& measured,
                                            const Profile& profile, const Cluster& cluster,
                                            const SearchBudget& search = {},
                                            ReplannedRanks ranks = ReplannedRanks::any);

}  // namespace stagecraft
