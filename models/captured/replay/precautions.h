#pragma once

// What is done around a call because the operator's kernel does not do it, and no rule about sizes can stand in
// for it (argument_rules.h): numbers are known and memory is laid out only while the graph runs. On devices also
// what their kernels do otherwise than the CPU's, on which graphs are captured.

#include "models/captured/format/step_view.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace stagecraft::captured {

struct Precautions {
  enum class Order : std::uint8_t {
    dense,       ///< in the order of its dimensions: the kernel reads it without its strides
    same,        ///< in any order, without gaps or repetitions
    dense_rows,  ///< the last dimension without gaps: the kernel knows the strides of the others
  };
  struct Layout {
    std::uint32_t position;
    Order order;
  };
  /// Indices of [from, below), or `ignored`.
  struct Indices {
    std::uint32_t position;
    std::int64_t below;
    std::optional<std::int64_t> ignored;
    std::int64_t from = 0;
    bool begins_with_zero = false;
  };

  /// A result that says nothing, which nothing reads: zeros in its place.
  struct Nothing {
    std::uint32_t position;
    bool always;  ///< the kernel leaves it unwritten; else where it has another size than the graph says
  };

  std::optional<c10::OperatorHandle> op;  ///< to be called: the step's own, or one in its place
  std::vector<Layout> layouts;
  std::vector<Indices> indices;
  bool widens =
      false;  ///< the kernel takes floating-point numbers of one type alone: all of them are float32
  std::vector<Nothing> nothings;
  std::optional<std::uint32_t> code;  ///< a result that is 0 where LAPACK succeeded, and that nothing reads

  /// Before the call: copies arguments that lie otherwise, and throws InputError for indices out of range.
  void take(torch::jit::Stack& stack, const Step& step) const;
  /// Behind it: the results as the graph says, for micro-batches of `b` samples.
  void settle(torch::jit::Stack& results, const std::vector<ValueType>& types, std::int64_t b) const;
  /// Throws InputError where a matrix has no inverse or no decomposition, as eager mode does.
  void require_success(const torch::jit::Stack& results, const Step& step) const;
};

/// Indices and codes are compared on the CPU alone: on CUDA the kernels compare indices, and the host waits for
/// neither. Throws InputError for an operator whose kernel on devices makes it wait.
[[nodiscard]] Precautions precautions_for(const StepView& view, c10::Device device);

}  // namespace stagecraft::captured
