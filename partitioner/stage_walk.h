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

#include "stagecraft/partitioner/profile.h"

#include <optional>
#include <set>
#include <string>

namespace stagecraft {

/// A stage that grows layer by layer, so that all stages with the same first layer cost O(1) each.
class StageWalk {
 public:
  StageWalk(const Measurement& measurement, int first, double optimizer_bytes_per_parameter_byte);

  /// Takes in the next layer. Requires that there is one.
  void extend();
  [[nodiscard]] int last() const { return next_; }  ///< one past the last layer taken in
  /// Of the stage [first, last()). Requires at least one layer.
  [[nodiscard]] StageCosts costs() const;

 private:
  /// The storage that the last layer taken in has left behind.
  struct Boundary {
    Bytes bytes;                   ///< 0 for the stage's input: that lies in a slot
    bool is_input = true;          ///< still the stage's input storage
    bool kept = false;             ///< by a layer so far
    bool kept_for_weight = false;  ///< by a layer's weight half so far
    bool gradient_kept = false;    ///< likewise its gradient
    Bytes gradient;                ///< bytes of its gradient, if a layer behind it makes one
    // Highest live bytes while a half of the layers that end in it runs, the gradient not counted:
    std::optional<Bytes> input_half;             ///< this storage counted where one of those layers keeps it
    std::optional<Bytes> input_half_for_weight;  ///< and should a weight half need it in the end
    std::optional<Bytes> weight_half;
  };

  [[nodiscard]] StageCosts costs_of_bundles() const;
  void add_spread(const LayerProfile& layer);
  void leave_boundary(const LayerProfile& layer);
  void close_boundary();
  void add_backward(const LayerProfile& layer, Bytes input);
  void add_halves(const LayerProfile& layer, Bytes gradient_made);

  const Measurement& measurement_;
  int first_;
  int next_;
  double optimizer_factor_;
  Bytes by_factor_;  // of the parameters whose optimizer state follows from the factor

  std::set<std::string> fields_;  // that its layers read
  bool has_bundles_ = false;      // several tensors go on before or behind a layer: bundle_walk.h
  StageCosts sums_;    // times, parameters, buffers, forward_peak, kept_for_weight of closed boundaries
  Bytes unkept_peak_;  // of a forward that keeps nothing
  Bytes closed_;       // kept by the layers so far, without the boundary
  Boundary boundary_;

  // Highest live bytes of backward. While only views follow, a layer's incoming gradient is the one in the
  // receive slot; as soon as another layer follows it takes bytes of its own.
  Bytes settled_;       // layers whose incoming gradient is certain to be the stage's own
  Bytes pending_own_;   // the last ones, should another layer follow
  Bytes pending_slot_;  // the same if the stage ends here

  // The same of each half over the layers before the boundary; of the input half what layers up to its own
  // keep for their weight halves is taken off, so that with all that is kept for weight halves it is what
  // was live.
  std::optional<Bytes> input_half_, weight_half_;
};

}  // namespace stagecraft
