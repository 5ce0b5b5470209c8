#include "models/check/repeat_check.h"

#include "models/check/watch.h"

#include <ATen/ops/roll.h>
#include <fmt/format.h>

#include <array>
#include <utility>

namespace stagecraft {
namespace {

/// What one micro-batch's forward and backward give.
struct Run {
  Bundle outputs, input_gradients;
  Tensors weight_gradients, buffers;
};

/// The gradients of the outputs are the same for the same micro-batch.
class Repeats {
 public:
  explicit Repeats(const TriedLayer& tried) : tried_(tried) {}

  void again() {
    const Tensors& before = tried_.materials().buffers;
    const Run first = alone(0, before);
    (void)alone(1, first.buffers);
    require_equal(alone(0, before), first, "on a second call");
    LayerMaterials with = tried_.copy();
    Tensors buffers = with.buffers;
    require(same_bits(forward(with, 0, buffers, nullptr), first.outputs),
            "the forward gives other bits where nothing is kept");
    with = tried_.copy();
    buffers = with.buffers;
    Kept kept;
    require(same_bits(forward(with, 0, buffers, &kept, /*commit_buffers=*/false), first.outputs),
            "the forward gives other bits when it is done again (commit_buffers false)");
  }

  void apart() {
    const Run first = alone(0, tried_.materials().buffers);
    const Run second = alone(1, first.buffers);
    interleaved(first, second, {0, 1});
    interleaved(first, second, {1, 0});
    if (gradients_[0].empty() || tried_.parameters().empty()) return;
    require(same_bits(summed(true), summed(false)),
            "two micro-batches' weight gradients have other bits with their halves apart (I I W W)");
    const LayerMaterials with = tried_.copy();
    Tensors buffers = with.buffers;
    Kept kept;
    (void)forward(with, 0, buffers, &kept);
    const Bundle none = tried_.layer().backward_bundle(with.copies, clones(gradients_[0]), kept,
                                                       /*needs_input_gradient=*/false);
    for (const at::Tensor& gradient : none) {
      require(!gradient.defined(), "backward gives gradients of inputs that need none");
    }
    GradientAccumulator sums = tried_.accumulator();
    tried_.backward_weight(kept, sums);
    require(same_bits(sums.gradients(), first.weight_gradients),
            "weight gradients have other bits where the input needs none");
  }

 private:
  static const LayerInput& input(const LayerMaterials& of, std::size_t k) {
    return k == 0 ? of.first : of.second;
  }

  Bundle forward(const LayerMaterials& with, std::size_t k, Tensors& buffers, Kept* kept,
                 bool commit_buffers = true) const {
    return train_forward(tried_.layer(), with, input(with, k), buffers, kept, commit_buffers);
  }

  Run alone(std::size_t k, const Tensors& buffers) {
    const LayerMaterials with = tried_.copy();
    Run run;
    run.buffers = clones(buffers);
    Kept kept;
    const Bundle outputs = forward(with, k, run.buffers, &kept);
    run.outputs = clones(outputs);
    if (gradients_[k].empty()) gradients_[k] = drawn_gradients(outputs);
    if (gradients_[k].empty()) return run;
    const Bundle before = tried_.backward_input(with, clones(gradients_[k]), kept);
    run.input_gradients = clones(before);
    require(kept.for_input.empty(), "backward_input leaves tensors in kept.for_input");
    GradientAccumulator sums = tried_.accumulator();
    tried_.backward_weight(kept, sums);
    require(tried_.parameters().empty() || kept.for_weight.empty(),
            "backward_weight leaves tensors in kept.for_weight");
    run.weight_gradients = clones(sums.gradients());
    return run;
  }

  void require_equal(const Run& ours, const Run& expected, const std::string& when) const {
    require(same_bits(ours.outputs, expected.outputs), "the forward gives other bits " + when);
    require(same_bits(ours.input_gradients, expected.input_gradients),
            "backward_input gives other bits " + when);
    for (std::size_t i = 0; i < expected.weight_gradients.size(); ++i) {
      require(same_bits(ours.weight_gradients[i], expected.weight_gradients[i]),
              fmt::format("the gradient of \"{}\" has other bits {}", tried_.parameters()[i].name, when));
    }
    for (std::size_t i = 0; i < expected.buffers.size(); ++i) {
      require(same_bits(ours.buffers[i], expected.buffers[i]),
              fmt::format("buffer \"{}\" has other bits {}", tried_.buffers()[i].name, when));
    }
  }

  /// Both under way at once; they go backward in `order`.
  void interleaved(const Run& first, const Run& second, const std::array<std::size_t, 2>& order) const {
    const LayerMaterials with = tried_.copy();
    Tensors buffers = with.buffers;
    std::array<Kept, 2> kept;
    std::array<Run, 2> runs;
    for (std::size_t k = 0; k < 2; ++k) runs[k].outputs = forward(with, k, buffers, &kept[k]);
    std::array<GradientAccumulator, 2> sums{tried_.accumulator(), tried_.accumulator()};
    for (const std::size_t k : order) {
      if (gradients_[k].empty()) continue;
      runs[k].input_gradients = tried_.backward_input(with, clones(gradients_[k]), kept[k]);
    }
    for (const std::size_t k : order) {
      if (gradients_[k].empty()) continue;
      tried_.backward_weight(kept[k], sums[k]);
      runs[k].weight_gradients = clones(sums[k].gradients());
    }
    runs[0].buffers = first.buffers;  // the second forward has changed them since
    runs[1].buffers = std::move(buffers);
    const char* const when = "while another micro-batch is under way";
    require_equal(runs[0], first, when);
    require_equal(runs[1], second, when);
  }

  /// Two micro-batches into one sum.
  Tensors summed(bool halves_apart) const {
    const LayerMaterials with = tried_.copy();
    Tensors buffers = with.buffers;
    std::array<Kept, 2> kept;
    for (std::size_t k = 0; k < 2; ++k) (void)forward(with, k, buffers, &kept[k]);
    GradientAccumulator sums = tried_.accumulator();
    (void)tried_.backward_input(with, clones(gradients_[0]), kept[0]);
    if (!halves_apart) tried_.backward_weight(kept[0], sums);
    (void)tried_.backward_input(with, clones(gradients_[1]), kept[1]);
    if (halves_apart) tried_.backward_weight(kept[0], sums);
    tried_.backward_weight(kept[1], sums);
    return clones(sums.gradients());
  }

  const TriedLayer& tried_;
  std::array<Bundle, 2> gradients_;  ///< of the outputs; empty: none has one
};

}  // namespace

void require_repeats(const TriedLayer& tried) { Repeats(tried).again(); }

void require_apart(const TriedLayer& tried) {
  Repeats(tried).apart();
  LayerMaterials alike = tried.materials();
  for (std::size_t i = 0; i < alike.first.inputs.size(); ++i) {
    const at::Tensor& value = alike.first.inputs[i];
    alike.second.inputs[i] = value.dim() > 0 ? value.roll(1, 0) : value;
  }
  alike.second.fields = alike.first.fields;
  Repeats(TriedLayer(tried.layer(), alike)).apart();
}

}  // namespace stagecraft
