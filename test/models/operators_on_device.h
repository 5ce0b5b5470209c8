#pragma once

// What a device makes of every operator that a captured graph may use, beside what the CPU makes: every valid
// call (operator_calls.h), with its tensors as they are, transposed,
// with channels last, and with gaps.

#include <c10/core/Device.h>

#include <string>

namespace stagecraft::test {

struct DeviceFindings {
  int calls = 0;
  int findings = 0;        ///< refused or failed there alone, other numbers, other bits the next time
  int other_strides = 0;   ///< results that lie otherwise there
  int integers = 0;        ///< calls with whole numbers, for which the device has no kernel
  int not_repeatable = 0;  ///< calls that the list says are refused in deterministic runs, and were
};

/// Prints a line per finding, at once. In deterministic mode bits are compared too. Throws std::runtime_error where
/// `calls` cannot be read.
[[nodiscard]] DeviceFindings compare_operators(c10::Device device, const std::string& calls);

}  // namespace stagecraft::test
