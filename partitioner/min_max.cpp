#include "partitioner/chain_partition.h"
#include "partitioner/planner.h"

namespace stagecraft {

namespace {

/// Time of a stage on its device, and of a boundary over its link (the activation forward and its gradient
/// back are of one size and the link is the same both ways).
class TimeCosts {
 public:
  TimeCosts(const Measurement& measurement, const Network& network, int stages,
            const std::vector<double>& speed, const std::function<bool(StageId, int, int)>& fits)
      : layers_(measurement.layers), speed_(speed), fits_(fits) {
    until_.reserve(layers_.size() + 1);
    until_.push_back(0);
    for (const LayerProfile& layer : layers_) {
      until_.push_back(
          until_.back() +
          (layer.forward.median + layer.backward_input.median + layer.backward_weight.median).value);
    }
    for (int stage = 1; stage < stages; ++stage)
      links_.push_back(network.between(Rank{stage - 1}, Rank{stage}));
  }

  [[nodiscard]] double floor(int stage, int first, int last) const {
    const double work = until_[static_cast<std::size_t>(last)] - until_[static_cast<std::size_t>(first)];
    return speed_.empty() ? work : work / speed_[static_cast<std::size_t>(stage)];
  }
  [[nodiscard]] double part(int stage, int first, int last) const {
    return fits_ && !fits_(StageId{stage}, first, last) ? kForbidden : floor(stage, first, last);
  }
  [[nodiscard]] double cut(int stage, int layer) const {
    return links_[static_cast<std::size_t>(stage - 1)]
        .time(layers_[static_cast<std::size_t>(layer - 1)].output)
        .value;
  }

 private:
  const std::vector<LayerProfile>& layers_;
  const std::vector<double>& speed_;
  const std::function<bool(StageId, int, int)>& fits_;
  std::vector<double> until_;  // time of all layers before
  std::vector<Link> links_;    // into stages 1, 2, ...
};

}  // namespace

std::optional<std::vector<int>> min_max_cuts(const Measurement& measurement, const Network& network,
                                             int stages, const std::vector<double>& speed,
                                             const std::function<bool(StageId, int first, int last)>& fits) {
  const int layers = static_cast<int>(measurement.layers.size());
  STAGECRAFT_CHECK(stages >= 1 && stages <= layers, "as many stages as layers at most");
  STAGECRAFT_CHECK(speed.empty() || static_cast<int>(speed.size()) >= stages,
                   "a speed for every stage's device");
  const TimeCosts costs(measurement, network, stages, speed, fits);
  auto best = ChainPartitioner(layers, stages, costs).run();
  if (!best) return std::nullopt;
  return std::move(best->cuts);
}

}  // namespace stagecraft
