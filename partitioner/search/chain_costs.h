#pragma once

// A chain of layers as sums from its beginning, so that what any stage takes is known in O(1): all that a
// simulation reads of a stage, without its memory.

#include "partitioner/plan/profile.h"

#include <cstddef>
#include <vector>

namespace stagecraft::planning {

class ChainCosts {
 public:
  explicit ChainCosts(const Measurement& measurement);

  [[nodiscard]] int layers() const { return static_cast<int>(until_.size()) - 1; }

  /// Seconds of one micro-batch on a device of speed 1, of layers [first, last).
  [[nodiscard]] double forward(int first, int last) const { return at(last).forward - at(first).forward; }
  /// Of those that are not frozen.
  [[nodiscard]] double trained_forward(int first, int last) const {
    return at(last).trained_forward - at(first).trained_forward;
  }
  [[nodiscard]] double backward_input(int first, int last) const {
    return at(last).backward_input - at(first).backward_input;
  }
  [[nodiscard]] double backward_weight(int first, int last) const {
    return at(last).backward_weight - at(first).backward_weight;
  }
  [[nodiscard]] double compute(int first, int last) const {
    return forward(first, last) + backward_input(first, last) + backward_weight(first, last);
  }
  [[nodiscard]] double step(int first, int last) const { return at(last).step - at(first).step; }
  [[nodiscard]] Bytes parameters(int first, int last) const {
    return at(last).parameters - at(first).parameters;
  }
  /// What enters `layer`, from the layer before or, of layer 0, from the data; and its gradient.
  [[nodiscard]] Bytes boundary(int layer) const { return boundaries_[to_size(layer)]; }
  [[nodiscard]] Bytes loss_report() const { return loss_report_; }
  /// Times, parameters and boundaries; no memory.
  [[nodiscard]] StageCosts stage(int first, int last) const;

 private:
  struct Until {
    double forward = 0, trained_forward = 0, backward_input = 0, backward_weight = 0, step = 0;
    Bytes parameters;
  };
  [[nodiscard]] const Until& at(int layer) const { return until_[to_size(layer)]; }

  std::vector<Until> until_;  // of all layers before
  std::vector<Bytes> boundaries_;
  Bytes loss_report_;
};

}  // namespace stagecraft::planning
