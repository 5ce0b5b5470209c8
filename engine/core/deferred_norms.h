#pragma once

// Gradients' norms that nobody waits for: a device's sums of squares are on their way to the host, and what
// follows from them is heard one step later. Until then the run goes on with weights that nothing saves.

#include "engine/core/loss_sum.h"

#include <ATen/core/Tensor.h>

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace stagecraft {

/// Of one step; without a value until it was heard.
using LateNorm = std::shared_ptr<std::optional<double>>;

class DeferredNorms {
 public:
  /// Gets this rank's sums of squares.
  using Heard = std::function<void(const std::vector<double>& squares)>;

  /// `meanwhile` is called while numbers are waited for (Transport::progress).
  explicit DeferredNorms(std::function<void()> meanwhile) : meanwhile_(std::move(meanwhile)) {}

  /// `squares`: [n], double precision.
  void add(const at::Tensor& squares, Heard heard);
  /// Waits for all, and calls what was added, in order: at the same places of all ranks' lists, where that
  /// exchanges them.
  void hear_all();

 private:
  struct Entry {
    AsyncScalars squares;
    std::int64_t count;
    Heard heard;
  };
  std::function<void()> meanwhile_;
  std::deque<Entry> entries_;
};

}  // namespace stagecraft
