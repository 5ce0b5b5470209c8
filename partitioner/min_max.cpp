#include "partitioner/chain_partition.h"
#include "partitioner/planner.h"
#include "partitioner/planning/occupancy.h"
#include "schedules/collectives.h"

#include <algorithm>
#include <utility>

namespace stagecraft {

namespace {

using planning::BoundaryOccupancy;
using planning::ChainCosts;

/// What stages and cuts occupy, as planning/occupancy.h has it.
class TimeCosts {
 public:
  TimeCosts(const Measurement& measurement, const Network& network, const Placement& placement,
            const std::vector<double>& speed, int micro_batches,
            const std::function<bool(StageId, int, int)>& fits)
      : network_(network), fits_(fits), micro_batches_(micro_batches), chain_(measurement) {
    until_.reserve(measurement.layers.size() + 1);
    until_.push_back(0);
    for (const LayerProfile& layer : measurement.layers) {
      until_.push_back(
          until_.back() +
          (layer.forward.median + layer.backward_input.median + layer.backward_weight.median).value);
    }
    for (std::size_t stage = 0; stage < placement.ranks.size(); ++stage) {
      members_.push_back(placement.ranks[stage]);
      std::sort(members_.back().begin(), members_.back().end());
      speed_.push_back(planning::stage_speed(placement.ranks[stage], speed));
      if (stage > 0) boundaries_.emplace_back(network, placement.ranks[stage - 1], placement.ranks[stage]);
    }
  }

  [[nodiscard]] double floor(int stage, int first, int last) const {
    const double work = until_[static_cast<std::size_t>(last)] - until_[static_cast<std::size_t>(first)];
    return work / speed_[static_cast<std::size_t>(stage)];
  }
  [[nodiscard]] double part(int stage, int first, int last) const {
    if (fits_ && !fits_(StageId{stage}, first, last)) return kForbidden;
    const auto& members = members_[static_cast<std::size_t>(stage)];
    double seconds = floor(stage, first, last);
    if (members.size() > 1) {
      seconds += all_reduce(network_, members, chain_.parameters(first, last)).time().value / micro_batches_;
    }
    return seconds;
  }
  [[nodiscard]] double cut(int stage, int layer) const {
    return boundaries_[static_cast<std::size_t>(stage - 1)].seconds(chain_.boundary(layer));
  }

 private:
  const Network& network_;
  const std::function<bool(StageId, int, int)>& fits_;
  int micro_batches_;
  ChainCosts chain_;
  std::vector<double> until_;                  // time of all layers before
  std::vector<std::vector<Rank>> members_;     // per stage, ascending
  std::vector<double> speed_;                  // a stage
  std::vector<BoundaryOccupancy> boundaries_;  // into stages 1, 2, ...
};

}  // namespace

std::optional<std::vector<int>> min_max_cuts(const Measurement& measurement, const Network& network,
                                             const Placement& placement, const std::vector<double>& speed,
                                             const std::function<bool(StageId, int first, int last)>& fits,
                                             int micro_batches) {
  const int layers = static_cast<int>(measurement.layers.size());
  const int stages = placement.stages();
  STAGECRAFT_CHECK(stages >= 1 && stages <= layers, "as many stages as layers at most");
  STAGECRAFT_CHECK(speed.empty() || static_cast<int>(speed.size()) >= placement.world(),
                   "a speed for every stage's device");
  const TimeCosts costs(measurement, network, placement, speed, micro_batches, fits);
  auto best = ChainPartitioner(layers, stages, costs).run();
  if (!best) return std::nullopt;
  return std::move(best->cuts);
}

}  // namespace stagecraft
