#pragma once

// Between the fake accelerator and its recordings: what it asks while something is recorded on this thread.

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstddef>
#include <functional>
#include <string>

namespace stagecraft::test {

class Recorder {
 public:
  virtual ~Recorder() = default;
  [[nodiscard]] virtual c10::DataPtr allocate(std::size_t bytes) = 0;
  /// Instead of the operator: its results, without values.
  virtual void add(const c10::OperatorHandle& op, torch::jit::Stack* stack) = 0;
  virtual void add_copy(const at::Tensor& from, const at::Tensor& to) = 0;
};

/// Of this thread; null: nothing is recorded.
[[nodiscard]] Recorder* recorder();
/// Throws where something is recorded on this thread.
void refuse_while_recording(const std::string& what);

}  // namespace stagecraft::test
