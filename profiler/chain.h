#pragma once

// A whole model as a chain of steps that can be taken and watched one at a time: its layers with their
// weights and gradients, and the loss as one more row behind them. Carries out what a stage of the engine
// does, in the same order, so that what is measured here is what a run does.

#include "models/layers/gradient_accumulator.h"
#include "models/losses/loss.h"
#include "models/model.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace stagecraft {

/// One micro-batch of data.
struct ChainInput {
  at::Tensor inputs;
  at::Tensor targets;
  FieldTensors fields{};  ///< that layers and the loss read
};

/// What one micro-batch keeps between its forward and its backward, by row.
struct ChainWork {
  std::vector<Kept> kept;
  at::Tensor targets;
  FieldTensors fields;
};

/// Autograd must be off in the calling thread (c10::InferenceMode).
class Chain {
 public:
  using Update = std::function<void(int layer, const Tensors& parameters, const Tensors& gradients)>;

  /// `left_out`: layers without weights that are not to be run; empty for none.
  Chain(const Model& model, const Loss& loss, std::uint64_t seed, at::Device device,
        std::vector<bool> left_out = {});

  [[nodiscard]] int rows() const { return static_cast<int>(model_.layers.size()) + 1; }
  [[nodiscard]] bool is_loss(int row) const { return row + 1 == rows(); }
  [[nodiscard]] bool runs(int row) const {
    const auto i = static_cast<std::size_t>(row);
    return i >= left_out_.size() || !left_out_[i];
  }
  /// No layer up to it has a trained weight: it has no backward.
  [[nodiscard]] bool frozen(int row) const { return row < model_.gradient_from; }
  [[nodiscard]] std::string name(int row) const;
  /// Fields of the batch that the row reads.
  [[nodiscard]] std::vector<std::string> fields(int row) const;
  [[nodiscard]] bool has_weights(int row) const { return !is_loss(row) && !weights(row).empty(); }
  [[nodiscard]] const Tensors& weights(int row) const { return parameters_[static_cast<std::size_t>(row)]; }
  /// What the row's layer reads of them: copies, in mixed precision.
  [[nodiscard]] const Tensors& weights_read(int row) const { return copies_[static_cast<std::size_t>(row)]; }
  [[nodiscard]] bool mixed() const { return model_.precision.mixed(); }
  [[nodiscard]] const Tensors& buffers(int row) const { return buffers_[static_cast<std::size_t>(row)]; }

  [[nodiscard]] at::Device device() const { return device_; }
  /// Begins a micro-batch, whose `data` may lie on the CPU or on the chain's device: what row 0 reads.
  [[nodiscard]] Bundle begin(const ChainInput& data, ChainWork& work) const;
  /// The row's output; none of the loss.
  [[nodiscard]] Bundle forward(int row, const Bundle& input, ChainWork& work, std::uint64_t micro_batch);
  /// Gradients of the row's input; none of the first row that is not frozen. `gradients` are those of its output, none for the loss.
  [[nodiscard]] Bundle backward_input(int row, const Bundle& gradients, ChainWork& work) const;
  /// Requires weights.
  void backward_weight(int row, ChainWork& work);
  /// The optimizer's update, and what layers read made anew.
  void update(int row, const Update& update);
  /// The next contribution to each gradient writes.
  void clear_gradients();
  /// Which of the row's gradients have had a contribution since; to be told where recordings contribute.
  [[nodiscard]] const std::vector<bool>& written(int row) const {
    return gradients_[static_cast<std::size_t>(row)].written();
  }
  void set_written(int row, std::vector<bool> written) {
    gradients_[static_cast<std::size_t>(row)].set_written(std::move(written));
  }

 private:
  const Model& model_;
  const Loss& loss_;
  std::uint64_t seed_;
  at::Device device_;
  std::vector<bool> left_out_;
  std::vector<Tensors> parameters_;
  std::vector<Tensors> copies_;  // the parameters themselves, where the precision is not mixed
  std::vector<Tensors> buffers_;
  std::vector<GradientAccumulator> gradients_;
};

}  // namespace stagecraft
