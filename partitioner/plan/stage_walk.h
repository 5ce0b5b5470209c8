#pragma once

// From layers to a stage: what a stage of consecutive layers costs in time and bytes.
//
// The memory model. Walk the stage's layers in order; x(i) is the tensor that enters layer i. Several of them
// may share one storage (a flatten's output is its input), and a storage is what takes bytes.
//   - The stage's input storage lies in the receive slot (on stage 0 in the loaded batch). Whoever needs it
//     until backward reads it there, so it is not counted here; nor are views of it.
//   - A storage between two layers is kept if any layer in the stage keeps it as its input or its output: it
//     counts once. If nobody does, it is gone as soon as the layer that reads it has run.
//   - The storage of the stage's output is the tensor that is sent: `output`, and `output_kept` if a layer of
//     this stage keeps it as well. It is not part of `kept_for_input`.
//   - Forward's worst moment: everything kept so far, the layer's input, and what the layer itself adds
//     (kept, output, transients). If the stage keeps nothing, because it will be recomputed: one layer's
//     input and all that it adds.
//   - Backward frees as it goes back. While layer i runs, kept is whatever layers up to i keep; to that come
//     the gradient entering it (for the stage's last layer that lies in a receive slot and is not counted),
//     the gradient leaving it, and its transients. A view's gradient is a view. The model's first layer makes
//     no gradient of its input. The peak is relative to what was live before, i.e. to everything kept; where
//     that is never exceeded it is 0.
//   - What leaves a stage never shares memory with what entered it: a stage of nothing but views copies its
//     output and its gradient at the end.
//   - Between the halves of a split backward remain what the layers' weight halves need: their own
//     `kept_for_weight`, inputs and outputs, each storage once, and gradients of outputs (but the one of the
//     stage's output, which lies in the receive slot). While layer i's input half runs, all of that is there
//     of the layers behind it; while its weight half runs, of the layers up to it.
// Frozen layers, those before the first one with a trained weight, keep nothing and have no backward; the first layer
// behind them makes no gradient of its input, as the model's first one.
// Where several tensors go on between layers (models/tensors/bundle.h) three things are of bundles alone. What a stage
// receives is one tensor, in its slot, and its values are views of it. What it sends is a packed copy: `output`
// counts that, and values that layers keep besides count as kept. A value that goes through a layer keeps its
// memory; one that passes a layer by keeps its gradient's too.

#include "partitioner/plan/profile.h"

#include <cstddef>
#include <limits>
#include <set>
#include <string>
#include <vector>

namespace stagecraft {

/// A stage that grows layer by layer. Taking a layer in is O(1), the costs are linear in the layers.
class StageWalk {
 public:
  StageWalk(const Measurement& measurement, int first, double optimizer_bytes_per_parameter_byte);

  /// Takes in the next layer. Requires that there is one.
  void extend();
  [[nodiscard]] int last() const { return next_; }  ///< one past the last layer taken in
  /// Of the stage [first, last()). Requires at least one layer.
  [[nodiscard]] StageCosts costs() const;

 private:
  static constexpr std::size_t kNobody = std::numeric_limits<std::size_t>::max();

  /// Of activations. The first is the slot that the stage's input lies in.
  struct Storage {
    Bytes bytes;                        ///< 0 for what lies in a slot
    std::size_t kept_from = kNobody;    ///< the first level that keeps it for its backward
    std::size_t weight_from = kNobody;  ///< the first whose weight half does
  };
  /// A tensor that goes on.
  struct Value {
    std::size_t storage;
    Bytes bytes;
    bool has_gradient;
  };
  using Bundle = std::vector<Value>;
  /// A layer taken in, with its row, whether that says so value by value or as chains do.
  struct Level {
    const LayerProfile& layer;
    std::vector<InputProfile> inputs;
    std::vector<OutputProfile> outputs;
    Bundle before;
    Bytes kept{};  ///< until backward, by all levels up to this one
  };

  [[nodiscard]] Level level_of(const LayerProfile& layer) const;
  /// Whether a gradient leaves the layer for the one before it.
  [[nodiscard]] bool makes_gradient(int layer) const { return layer > gradient_from_; }
  void add_times(const LayerProfile& layer);
  void keep(std::size_t storage, bool kept, bool for_weight);
  [[nodiscard]] Bytes bytes_of(const Bundle& bundle, bool kept_too) const;
  void add_backward(StageCosts& costs, Bytes live_before) const;

  const Measurement& measurement_;
  int first_;
  int next_;
  int gradient_from_;  ///< first layer that is not frozen
  double optimizer_factor_;
  Bytes by_factor_;               // of the parameters whose optimizer state follows from the factor
  std::set<std::string> fields_;  // that its layers read
  StageCosts sums_;               // times, parameters, buffers, forward_peak
  Bytes unkept_peak_;             // of a forward that keeps nothing
  Bytes kept_;                    // until backward, so far
  std::vector<Storage> storages_{{}};
  std::vector<Level> levels_;
  Bundle sent_;  // goes on behind the last level
};

}  // namespace stagecraft
