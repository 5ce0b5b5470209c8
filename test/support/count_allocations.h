#pragma once

// Counts every operator new of the binary it is linked into (count_allocations.cpp replaces it), so that a
// test can show that something allocates nothing.

#include <cstddef>

namespace stagecraft::test {

[[nodiscard]] std::size_t allocations();
/// By this thread.
[[nodiscard]] std::size_t own_allocations();
/// The n-th allocation of the caller's thread from now on throws std::bad_alloc, and no other; 0: none does.
void fail_own_allocation(std::size_t n);

}  // namespace stagecraft::test
