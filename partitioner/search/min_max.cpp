#include "partitioner/search/min_max.h"

#include "partitioner/search/chain_costs.h"
#include "partitioner/search/chain_partition.h"
#include "partitioner/search/occupancy.h"
#include "schedules/costs/collectives.h"
#include "schedules/rules/reductions.h"

namespace stagecraft::planning {
namespace {

/// What stages and cuts occupy, as planning/occupancy.h has it.
class TimeCosts {
 public:
  TimeCosts(const Measurement& measurement, const Network& network, const Placement& placement,
            const std::vector<double>& speed, int micro_batches, const StageSettings& settings)
      : network_(network), settings_(settings), micro_batches_(micro_batches), chain_(measurement) {
    until_.reserve(measurement.layers.size() + 1);
    until_.push_back(0);
    for (const LayerProfile& layer : measurement.layers) {
      until_.push_back(
          until_.back() +
          (layer.forward.median + layer.backward_input.median + layer.backward_weight.median).value);
    }
    for (std::size_t stage = 0; stage < placement.ranks.size(); ++stage) {
      members_.push_back(members_of(placement, Op::reduce, StageId{stage}));
      speed_.push_back(stage_speed(placement.ranks[stage], speed));
      if (stage > 0) boundaries_.emplace_back(network, placement.ranks[stage - 1], placement.ranks[stage]);
    }
  }

  [[nodiscard]] double floor(int stage, int first, int last) const {
    const double work = until_[to_size(last)] - until_[to_size(first)];
    return work / speed_[to_size(stage)];
  }
  [[nodiscard]] double part(int stage, int first, int last) const {
    const auto setting = settings_.least(StageId{stage}, first, last);
    if (!setting) return kForbidden;
    const auto& members = members_[to_size(stage)];
    const double repeated = recomputed_share(*setting, static_cast<int>(members.size()), micro_batches_);
    double seconds =
        floor(stage, first, last) + repeated * chain_.forward(first, last) / speed_[to_size(stage)];
    if (members.size() > 1) {
      seconds += all_reduce(network_, members, chain_.parameters(first, last)).time().value / micro_batches_;
    }
    return seconds;
  }
  [[nodiscard]] double cut(int stage, int layer) const {
    return boundaries_[to_size(stage - 1)].seconds(chain_.boundary(layer));
  }

 private:
  const Network& network_;
  const StageSettings& settings_;
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
                                             const StageSettings& settings, int micro_batches) {
  const int layers = static_cast<int>(measurement.layers.size());
  const int stages = placement.stages();
  STAGECRAFT_CHECK(stages >= 1 && stages <= layers, "as many stages as layers at most");
  STAGECRAFT_CHECK(speed.empty() || static_cast<int>(speed.size()) >= placement.world(),
                   "a speed for every stage's device");
  const TimeCosts costs(measurement, network, placement, speed, micro_batches, settings);
  return ChainPartitioner(layers, stages, costs).run();
}

std::vector<std::vector<int>> min_max_ties(const Measurement& measurement, const Network& network,
                                           const Placement& placement, const std::vector<double>& speed,
                                           const StageSettings& settings, int micro_batches,
                                           std::size_t most) {
  const TimeCosts costs(measurement, network, placement, speed, micro_batches, settings);
  return ChainPartitioner(static_cast<int>(measurement.layers.size()), placement.stages(), costs).ties(most);
}

}  // namespace stagecraft::planning
