#pragma once

// LibTorch's operators for CUDA. They are a library of a gigabyte that a run on CPUs has no use for, and that
// this program calls through ATen's dispatcher alone: so it is loaded when it is asked for, not linked.

namespace stagecraft {

/// Throws InputError where the build or LibTorch is without CUDA. Later calls do nothing.
void load_cuda_operators();

}  // namespace stagecraft
