#pragma once

// Freed memory of small tensors, kept by the thread that freed it for its next tensor of about that size. A step
// asks for the same blocks again, and malloc takes 64-byte alignment apart and together each time: 6 to 15 % of a
// step of small layers (docs/measurements/2026-11-27-torch-2.15.md).

#include <cstddef>

namespace stagecraft::small_blocks {

/// The size to allocate a block of `bytes` with, so that it may be kept: the next power of two, or `bytes` where
/// that is not small.
[[nodiscard]] std::size_t size_of(std::size_t bytes);

/// A kept block of that size (of size_of); null: none is there.
[[nodiscard]] void* take(std::size_t size);

/// Whether it is kept: it is small, and the thread has not kept too many. `block` was allocated with that size, and
/// is freed by `free` where the thread ends first.
[[nodiscard]] bool keep(void* block, std::size_t size, void (*free)(void*));

}  // namespace stagecraft::small_blocks
