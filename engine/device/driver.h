#pragma once

// The installed NVIDIA driver, as its kernel module tells it: there is no other way to ask a driver that is
// too old for the CUDA runtime.

#include <string>

namespace stagecraft {

/// "580.65.06" of the text in /proc/driver/nvidia/version; empty where none is in it.
[[nodiscard]] std::string driver_release(const std::string& text);

/// What is wrong with a driver for a CUDA runtime of this major version, and what to do; empty where nothing
/// is, or one of them is not known. Least releases: CUDA Compatibility, NVIDIA, table 1.
[[nodiscard]] std::string driver_remark(const std::string& release, int cuda_major);

}  // namespace stagecraft
