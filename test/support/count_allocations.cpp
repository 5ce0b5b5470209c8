#include "test/support/count_allocations.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {
std::atomic<std::size_t> count = 0;
thread_local std::size_t own_count = 0;
thread_local std::size_t own_left = 0;  // until one fails
}  // namespace

std::size_t stagecraft::test::allocations() { return count; }
std::size_t stagecraft::test::own_allocations() { return own_count; }
void stagecraft::test::fail_own_allocation(std::size_t n) { own_left = n; }

// In a file of its own: inlined next to a caller, GCC 12 takes the pair for mismatched.
void* operator new(std::size_t size) {
  ++count;
  ++own_count;
  if (own_left > 0 && --own_left == 0) throw std::bad_alloc();
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
