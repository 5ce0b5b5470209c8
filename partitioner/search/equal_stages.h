#pragma once

// The least step of `stages` equally wide stages, one per device, over all cuts at once and wherever the stages
// lie: a lower bound for all layouts of so many stages and replicas, in microseconds, and cuts to begin with.
//
// Of a stage of layers [a, b) with n micro-batches on its busiest replica it knows what holds in any order
// (step_bound.h), and of a program whose order is known also
//   - that after its first backward a rank still has all backwards and `forwards_behind` forwards to do, and
//     that first one waits for a micro-batch's way to the end and back;
//   - the mirror image: before its last forward it has done all others and `backwards_before` backwards.
// and that the first stage reduces and steps when the last gradient has come back. All of these grow with b
// and fall with a, and so does memory, so for a given time and first stage it is best to give every further
// stage in turn as many layers as it takes; whether all layers find a place is known in one pass. Bisection
// does the rest.

#include "partitioner/plan/compare_costs.h"
#include "partitioner/search/step_bound.h"

#include <functional>
#include <optional>
#include <vector>

namespace stagecraft::planning {

/// Of the chain and the cluster.
struct EqualStagesProblem {
  const ChainCosts& chain;
  const Network& network;
  double speed = 1;  ///< of the fastest device
  int devices = 1;
  int cuttable = 1;  ///< cuts lie before layers 1 to `cuttable` - 1
  int micro_batches = 1;
  bool split = true;  ///< whether a backward may be in two parts
  /// What every stage repeats at least, each directly before its backward.
  Recompute repeated = Recompute::none;
  bool frozen = false;   ///< some first layers are
  bool goes_on = false;  ///< as in order_free_bounds(): the time from one step to the next is bounded
};

/// In what order the busiest replica of a stage computes.
struct StageOrder {
  int forwards_behind = 0;   ///< after the first backward or its input part has begun
  int backwards_before = 0;  ///< whole or input parts, before the last forward
};
/// Of every stage with one device per stage.
[[nodiscard]] std::vector<StageOrder> stage_orders(const ScheduleProgram& program);

/// The least an all-reduce can take, wherever its members lie: what collectives.h says of the best of all sets
/// of so many devices, or less. Never falls as members are added.
class ReductionFloor {
 public:
  ReductionFloor(const Network& network, int devices);
  [[nodiscard]] double seconds(int replicas, Bytes bytes) const {
    const Floor& ring = rings_[to_size(replicas)];
    const Floor& levels = levels_[to_size(replicas)];
    const auto size = static_cast<double>(bytes.value);
    const double by_ring = ring.latency + ring.seconds_per_byte * size;
    const double by_level = levels.latency + levels.seconds_per_byte * size;
    return by_ring < by_level ? by_ring : by_level;
  }

 private:
  struct Floor {
    double latency = 0, seconds_per_byte = 0;
  };
  std::vector<Floor> rings_, levels_;  // by number of replicas
};

class EqualStages {
 public:
  /// May be wrong about layers that do not fit only by letting them through, to be a bound.
  using Fits = std::function<bool(int stage, int first, int last)>;
  struct Shape {
    int stages = 1;
    int replicas = 1;
    const std::vector<StageOrder>* orders = nullptr;  ///< null: any order
    const Fits* fits = nullptr;                       ///< null: all do
    /// Where they lie; null: anywhere.
    const PlacedCosts* placed = nullptr;
  };

  explicit EqualStages(const EqualStagesProblem& problem);

  /// Cuts with which no stage's bound is above so many seconds; empty if there are none.
  [[nodiscard]] std::optional<std::vector<int>> within(const Shape& shape, double seconds) const;

  struct Least {
    double bound = 0;                        ///< no step is below
    std::optional<std::vector<int>> cuts{};  ///< with bounds hardly above; none below `to_beat`
  };
  /// Without anything to beat no cuts, and an infinite bound, mean that none fit.
  [[nodiscard]] Least least(const Shape& shape, double to_beat = kInfinite) const;

 private:
  /// After the last gradient has come through a first stage of so many layers, at least.
  [[nodiscard]] double end(const Shape& shape, int last) const;
  [[nodiscard]] double reduction(const Shape& shape, int stage, int first, int last) const {
    if (shape.placed != nullptr) return shape.placed->reduction(stage, first, last);
    return shape.replicas > 1 ? reductions_.seconds(shape.replicas, problem_.chain.parameters(first, last))
                              : 0;
  }
  /// The largest of a stage's bounds.
  [[nodiscard]] double bound(const Shape& shape, int stage, int first, int last, double end) const;
  /// How many layers the stage takes; 0: none.
  [[nodiscard]] int furthest(const Shape& shape, int stage, int first, double seconds, double end) const;
  /// All cuts, behind a first stage of so many layers.
  [[nodiscard]] std::optional<std::vector<int>> behind(const Shape& shape, int last, double seconds,
                                                       double end) const;
  /// The same with a first stage of `low` to `high` layers.
  [[nodiscard]] std::optional<std::vector<int>> among(const Shape& shape, int low, int high,
                                                      double seconds) const;

  EqualStagesProblem problem_;
  int layers_;
  ReductionFloor reductions_;
  double whole_ = 0;  // one micro-batch through all layers and back, transfers apart
  double link_ = 0;   // over a boundary and back, at least
};

}  // namespace stagecraft::planning
