#pragma once

// Element-wise steps that write their result over an argument which dies in them. They spare the memory, and
// the time that fresh memory takes to come through the caches. The bits are the same: LibTorch runs one kernel
// for both forms of an operator, and it reads each element before it writes that one.

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace stagecraft::captured {

/// An operator of the list (operators.h), and its form with one argument more: the tensor that it writes to.
using OverwritingForm = std::pair<const char*, const char*>;
[[nodiscard]] std::span<const OverwritingForm> overwriting_forms();

/// None where an operator has no such form.
[[nodiscard]] std::optional<c10::OperatorHandle> overwriting_form_of(std::string_view name);

/// Of a step's arguments, one that its result may be written over: of those at `dying`, which have the
/// result's declared type and are read here last, the first whose memory nobody else holds or has lent. None
/// where an argument of that size lies in memory in another order, because the result's order would follow
/// from both.
[[nodiscard]] std::optional<at::Tensor> overwritable(const torch::jit::Stack& arguments,
                                                     const std::vector<std::uint32_t>& dying);

}  // namespace stagecraft::captured
