#pragma once

// Memory in which no read or write beyond a tensor goes unseen, whoever makes it. LibTorch's kernels are not
// compiled with a sanitizer, so the memory itself must tell: every tensor lies against a page that nobody may
// touch, and the rest of its own pages holds a pattern.

#include <cstddef>
#include <cstdint>

namespace stagecraft::test {

enum class Guard : std::uint8_t {
  behind,  ///< the page behind a tensor cannot be touched; the pattern lies before it
  before,  ///< the page before a tensor cannot be touched, but for what its place within a vector takes; the pattern
           ///< lies behind it
};

/// Installs the allocator for all of LibTorch's tensors on the CPU, for the rest of the process. No tensor
/// may be larger than `most_bytes`: LibTorch's error for a lack of memory is thrown.
void install_guarded_memory(std::size_t most_bytes);

/// For tensors that are made from now on: what they hold before anything is written to them, and where their
/// pattern is. Two runs with other patterns that give other results have read what they should not.
void set_guard(Guard guard, std::uint8_t pattern);

/// Tensors whose pattern was overwritten, by when they were freed or now, since the last call.
[[nodiscard]] int take_damaged();

}  // namespace stagecraft::test
