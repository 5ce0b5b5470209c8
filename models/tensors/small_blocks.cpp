#include "models/tensors/small_blocks.h"

#include <array>
#include <bit>
#include <new>

namespace stagecraft::small_blocks {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::size_t kLargest = 0;  // they are to see every block's end
#else
constexpr std::size_t kLargest = std::size_t{64} << 10U;
#endif
constexpr std::size_t kSmallest = 128;
/// Per thread. Blocks may be made by one thread and freed by another, which must not gather them for ever.
constexpr std::size_t kMostKept = std::size_t{4} << 20U;

struct Block {
  Block* next;
  void (*free)(void*);
};

/// Of a thread. A static tensor may be freed after it: `ended` outlives it.
thread_local bool ended = false;
struct Kept {
  std::array<Block*, std::bit_width(std::size_t{64} << 10U) + 1> by_size{};
  std::size_t bytes = 0;

  Kept() = default;
  Kept(const Kept&) = delete;
  Kept& operator=(const Kept&) = delete;
  ~Kept() {
    ended = true;
    for (Block* block : by_size) {
      while (block != nullptr) {
        Block* const next = block->next;
        block->free(block);
        block = next;
      }
    }
  }
};
thread_local Kept kept;

}  // namespace

std::size_t size_of(std::size_t bytes) {
  if (bytes > kLargest) return bytes;
  return bytes <= kSmallest ? kSmallest : std::bit_ceil(bytes);
}

void* take(std::size_t size) {
  if (size > kLargest || ended) return nullptr;
  Block*& first = kept.by_size[static_cast<std::size_t>(std::bit_width(size))];
  if (first == nullptr) return nullptr;
  Block* const block = first;
  first = block->next;
  kept.bytes -= size;
  return block;
}

bool keep(void* block, std::size_t size, void (*free)(void*)) {
  if (size > kLargest || ended || kept.bytes + size > kMostKept) return false;
  Block*& first = kept.by_size[static_cast<std::size_t>(std::bit_width(size))];
  first = new (block) Block{first, free};
  kept.bytes += size;
  return true;
}

}  // namespace stagecraft::small_blocks
