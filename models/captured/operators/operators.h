#pragma once

// The operators that a captured graph may use, and nothing else of a model folder is executed: functions of
// their arguments that draw no random numbers, touch no files and do not make the host wait for a device.

#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace stagecraft::captured {

enum class Effect : std::uint8_t {
  pure,  ///< results have memory of their own
  view,  ///< a result may share its first argument's memory
};

/// What a step must promise beyond its operator's schema.
enum class Condition : std::uint8_t {
  none,
  no_dropout,       ///< `dropout_p` is 0: the kernel would draw from LibTorch's generator
  no_running_mean,  ///< `training` is false, or running statistics are absent: the kernel would update them
};

/// How a GPU comes to the same bits every time, where a run asks for that (cuda.deterministic). From PyTorch's list
/// (torch.use_deterministic_algorithms), and from the calls in LibTorch's CUDA library of what throws
/// (Context::alertNotDeterministic).
enum class Repeats : std::uint8_t {
  unknown,     ///< nobody has said: no operator is
  by_nature,   ///< each number is made by one thread, or by a tree that is always the same
  by_setting,  ///< by another kernel of LibTorch's, or algorithm of cuBLAS or cuDNN, that the setting chooses
  by_form,     ///< by a form of ours (device_kernels.h)
  refused,     ///< not at all: LibTorch throws, so the model is refused when it is opened
  refused_summed,  ///< the same, where `reduction` sums
};

struct Operator {
  const char* name;  ///< with its overload: "aten::add.Tensor"
  Repeats repeats = Repeats::unknown;
  Effect effect = Effect::pure;
  Condition condition = Condition::none;
};

[[nodiscard]] std::span<const Operator> operators();
/// Null where it is not in the list.
[[nodiscard]] const Operator* find_operator(std::string_view name);
/// Those closest to a name, for messages: `; did you mean "aten::add.Tensor"?` or "".
[[nodiscard]] std::string similar_operator(std::string_view name);

/// A name as LibTorch's dispatcher has it, apart from its overload.
[[nodiscard]] c10::OperatorName operator_name(std::string_view name);

/// LibTorch's implementation of one of operators(). Throws InternalError where this LibTorch lacks it, or has
/// one that writes to its arguments or draws random numbers: such an operator is refused even in the list.
[[nodiscard]] c10::OperatorHandle handle_of(const Operator& op);

}  // namespace stagecraft::captured
