#include "partitioner/search/width_partition.h"

#include "partitioner/plan/compare_costs.h"
#include "partitioner/search/occupancy.h"
#include "schedules/costs/collectives.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace stagecraft::planning {
namespace {

constexpr double kMostSteps = 2e7;

std::vector<Rank> devices(int first, int count) {
  std::vector<Rank> ranks;
  for (int d = 0; d < count; ++d) ranks.emplace_back(first + d);
  return ranks;
}

class Partitioner {
 public:
  explicit Partitioner(const WidthProblem& problem) : problem_(problem), layers_(problem.chain.layers()) {
    const double n = problem.devices;
    const int counted = problem.stages.value_or(1);
    exact_ = static_cast<double>(layers_) * layers_ * n * n * n / 12 * counted <= kMostSteps;
    for (int width = 1; width <= problem.devices; ++width) {
      if (exact_ || (width & (width - 1)) == 0) widths_.push_back(width);
    }
    states_.resize(to_size(layers_) * to_size(problem.devices) * widths_.size() * to_size(counted));
  }

  std::optional<WidthPartition> run() {
    const int stages = problem_.stages.value_or(1);
    // The last stage first; without a number of stages all of them are of one kind.
    for (int left = 1; left <= stages; ++left) {
      for (int first = layers_ - 1; first >= 0; --first) {
        if (first > 0 && first >= problem_.cuttable) continue;
        for (int device = problem_.devices - 1; device >= 0; --device) {
          for (std::size_t w = 0; w < widths_.size() && device + widths_[w] <= problem_.devices; ++w) {
            fill(left, first, device, w);
          }
        }
      }
    }
    const State* best = nullptr;
    std::size_t width = 0;
    for (std::size_t w = 0; w < widths_.size(); ++w) {
      const State& state = at(stages, 0, 0, w);
      if (best != nullptr && state.bottleneck >= best->bottleneck) continue;
      best = &state;
      width = w;
    }
    if (best->bottleneck == kInfinite) return std::nullopt;
    WidthPartition partition{best->bottleneck, {}, {}, exact_};
    for (int left = stages, device = 0;;) {
      partition.widths.push_back(widths_[width]);
      if (best->last == layers_) return partition;
      partition.cuts.push_back(best->last);
      device += widths_[width];
      width = best->next;
      if (problem_.stages) --left;
      best = &at(left, partition.cuts.back(), device, width);
    }
  }

 private:
  /// The best way to go on with a stage that begins at a layer, on so many devices from one on.
  struct State {
    double bottleneck = kInfinite;
    int last = 0;          // of the stage
    std::size_t next = 0;  // width behind it
  };

  State& at(int left, int first, int device, std::size_t width) {
    const auto n = to_size(problem_.devices);
    return states_[((to_size(left - 1) * to_size(layers_) + to_size(first)) * n + to_size(device)) *
                       widths_.size() +
                   width];
  }

  void fill(int left, int first, int device, std::size_t w) {
    State& state = at(left, first, device, w);
    const int behind = device + widths_[w];
    const bool may_end = !problem_.stages || left == 1;
    const bool may_go_on = !problem_.stages || left > 1;
    for (int last = first + 1; last <= layers_; ++last) {
      const double floor = work(first, last, device, w);
      if (floor >= state.bottleneck) break;
      if (last < layers_ ? (!may_go_on || last >= problem_.cuttable) : !may_end) continue;
      if (problem_.possible && !problem_.possible(first, last, device, widths_[w])) continue;
      const double here = floor + reduction(first, last, device, w);
      if (last == layers_) {
        if (here < state.bottleneck) state = {here, last, 0};
        continue;
      }
      for (std::size_t next = 0; next < widths_.size() && behind + widths_[next] <= problem_.devices;
           ++next) {
        const double rest =
            std::max(here, at(problem_.stages ? left - 1 : left, last, behind, next).bottleneck);
        if (rest >= state.bottleneck) continue;
        const double all = std::max(rest, boundary(device, w, next).seconds(problem_.chain.boundary(last)));
        if (all < state.bottleneck) state = {all, last, next};
      }
    }
  }

  double work(int first, int last, int device, std::size_t w) {
    double& speed = speeds_.try_emplace({device, w}, 0.0).first->second;
    if (speed == 0) speed = stage_speed(devices(device, widths_[w]), problem_.speed);
    return problem_.chain.compute(first, last) / speed;
  }

  double reduction(int first, int last, int device, std::size_t w) {
    if (widths_[w] == 1) return 0;
    auto& members = members_[{device, w}];
    if (members.empty()) members = devices(device, widths_[w]);
    return all_reduce(problem_.network, members, problem_.chain.parameters(first, last)).time().value /
           problem_.micro_batches;
  }

  const BoundaryOccupancy& boundary(int device, std::size_t from, std::size_t to) {
    const auto found = boundaries_.find({device, from, to});
    if (found != boundaries_.end()) return found->second;
    return boundaries_
        .try_emplace({device, from, to}, problem_.network, devices(device, widths_[from]),
                     devices(device + widths_[from], widths_[to]))
        .first->second;
  }

  const WidthProblem& problem_;
  int layers_;
  bool exact_ = true;
  std::vector<int> widths_;
  std::vector<State> states_;  // per stages left (where counted), first layer, device and width
  std::map<std::pair<int, std::size_t>, double> speeds_;
  std::map<std::pair<int, std::size_t>, std::vector<Rank>> members_;
  std::map<std::tuple<int, std::size_t, std::size_t>, BoundaryOccupancy> boundaries_;
};

}  // namespace

std::optional<WidthPartition> width_partition(const WidthProblem& problem) {
  return Partitioner(problem).run();
}

}  // namespace stagecraft::planning
