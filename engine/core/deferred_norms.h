#pragma once

// Gradients' norms that nobody waits for: a device's numbers are on their way to the host, and what
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
  /// Gets the numbers that were added.
  using Heard = std::function<void(const std::vector<double>& norms)>;

  /// `meanwhile` is called while numbers are waited for (Transport::progress).
  explicit DeferredNorms(std::function<void()> meanwhile) : meanwhile_(std::move(meanwhile)) {}

  /// `norms`: [n].
  void add(const at::Tensor& norms, Heard heard);
  /// Waits for all, and calls what was added, in order: at the same places of all ranks' lists, where that
  /// exchanges them.
  void hear_all();

 private:
  struct Entry {
    AsyncScalars norms;
    std::int64_t count;
    Heard heard;
  };
  std::function<void()> meanwhile_;
  std::deque<Entry> entries_;
};

}  // namespace stagecraft
