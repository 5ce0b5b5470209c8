#include "partitioner/chain_partition.h"
#include "partitioner/planner.h"

namespace stagecraft {

namespace {

/// Time of a stage on its device, and of a boundary over its link (the activation forward and its gradient
/// back are of one size and the link is the same both ways).
class TimeCosts {
 public:
  TimeCosts(const Measurement& measurement, const Network& network, const Placement& placement,
            const std::vector<double>& speed, const std::function<bool(StageId, int, int)>& fits)
      : layers_(measurement.layers), fits_(fits) {
    until_.reserve(layers_.size() + 1);
    until_.push_back(0);
    for (const LayerProfile& layer : layers_) {
      until_.push_back(
          until_.back() +
          (layer.forward.median + layer.backward_input.median + layer.backward_weight.median).value);
    }
    for (std::size_t stage = 0; stage < placement.ranks.size(); ++stage) {
      const Rank rank = placement.ranks[stage].front();
      speed_.push_back(speed.empty() ? 1 : speed[rank.index()]);
      if (stage == 0) continue;
      const Rank before = placement.ranks[stage - 1].front();
      links_.push_back(before == rank ? std::nullopt : std::optional(network.between(before, rank)));
    }
  }

  [[nodiscard]] double floor(int stage, int first, int last) const {
    const double work = until_[static_cast<std::size_t>(last)] - until_[static_cast<std::size_t>(first)];
    return work / speed_[static_cast<std::size_t>(stage)];
  }
  [[nodiscard]] double part(int stage, int first, int last) const {
    return fits_ && !fits_(StageId{stage}, first, last) ? kForbidden : floor(stage, first, last);
  }
  [[nodiscard]] double cut(int stage, int layer) const {
    const std::optional<Link>& link = links_[static_cast<std::size_t>(stage - 1)];
    return link ? link->time(layers_[static_cast<std::size_t>(layer - 1)].output).value : 0;
  }

 private:
  const std::vector<LayerProfile>& layers_;
  const std::function<bool(StageId, int, int)>& fits_;
  std::vector<double> until_;               // time of all layers before
  std::vector<double> speed_;               // a stage
  std::vector<std::optional<Link>> links_;  // into stages 1, 2, ...; none within a rank
};

}  // namespace

std::optional<std::vector<int>> min_max_cuts(const Measurement& measurement, const Network& network,
                                             const Placement& placement, const std::vector<double>& speed,
                                             const std::function<bool(StageId, int first, int last)>& fits) {
  const int layers = static_cast<int>(measurement.layers.size());
  const int stages = placement.stages();
  STAGECRAFT_CHECK(stages >= 1 && stages <= layers, "as many stages as layers at most");
  STAGECRAFT_CHECK(speed.empty() || static_cast<int>(speed.size()) >= placement.world(),
                   "a speed for every stage's device");
  const TimeCosts costs(measurement, network, placement, speed, fits);
  auto best = ChainPartitioner(layers, stages, costs).run();
  if (!best) return std::nullopt;
  return std::move(best->cuts);
}

}  // namespace stagecraft
