#include "test/models/guarded_memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <array>
#include <cstring>
#include <sys/mman.h>
#include <unordered_map>
#include <vector>

namespace stagecraft::test {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kVector = 64;
constexpr std::size_t kReusedPages = 16;  // mappings of up to so many are used again
constexpr std::uint8_t kAllocatorPriority = 200;

struct Block {
  std::byte* pages = nullptr;  ///< behind the first guard
  std::size_t count = 0;       ///< of pages between the guards
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  std::byte pattern{};
};

struct State {
  std::size_t most_bytes = 0;
  Guard guard = Guard::behind;
  std::byte pattern{};
  int damaged = 0;
  std::unordered_map<void*, Block> live;
  std::array<std::vector<std::byte*>, kReusedPages + 1> spare;
};

State& state() {
  static State& all = *new State;
  return all;
}

/// Pages with one on either side that nobody may touch.
std::byte* mapped(std::size_t count) {
  const std::size_t whole = (count + 2) * kPage;
  void* const base = mmap(nullptr, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  TORCH_CHECK_WITH(OutOfMemoryError, base != MAP_FAILED, "out of memory: no address space");
  auto* const pages = static_cast<std::byte*>(base) + kPage;
  TORCH_CHECK_WITH(OutOfMemoryError, mprotect(pages, count * kPage, PROT_READ | PROT_WRITE) == 0,
                   "out of memory: no mapping");
  return pages;
}

/// Whether all these bytes are `pattern`: the first, and each as the one before it, which memcmp says fast.
bool all_are(std::byte pattern, const std::byte* begin, const std::byte* end) {
  if (begin == end) return true;
  return *begin == pattern && std::memcmp(begin, begin + 1, static_cast<std::size_t>(end - begin) - 1) == 0;
}

bool is_whole(const Block& block) {
  return all_are(block.pattern, block.pages, block.data) &&
         all_are(block.pattern, block.data + block.bytes, block.pages + block.count * kPage);
}

void release(void* data) {
  if (data == nullptr) return;
  State& all = state();
  const auto found = all.live.find(data);
  if (found == all.live.end()) return;
  const Block block = found->second;
  all.live.erase(found);
  if (!is_whole(block)) ++all.damaged;
  if (block.count <= kReusedPages) {
    all.spare[block.count].push_back(block.pages);
  } else {
    munmap(block.pages - kPage, (block.count + 2) * kPage);
  }
}

class GuardedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    const c10::Device cpu(c10::kCPU);
    if (bytes == 0) return {nullptr, nullptr, &release, cpu};
    State& all = state();
    TORCH_CHECK_WITH(OutOfMemoryError, bytes <= all.most_bytes, "out of memory: ", bytes, " bytes");
    Block block;
    block.count = (bytes + kPage - 1) / kPage;
    block.bytes = bytes;
    block.pattern = all.pattern;
    if (block.count <= kReusedPages && !all.spare[block.count].empty()) {
      block.pages = all.spare[block.count].back();
      all.spare[block.count].pop_back();
    } else {
      block.pages = mapped(block.count);
    }
    std::memset(block.pages, static_cast<int>(all.pattern), block.count * kPage);
    // Some kernels' last bits follow where memory lies within a vector, so that is the same at both ends.
    const std::size_t room = block.count * kPage - bytes;
    block.data = block.pages + (all.guard == Guard::before ? room % kVector : room);
    all.live.emplace(block.data, block);
    return {block.data, block.data, &release, cpu};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

}  // namespace

void install_guarded_memory(std::size_t most_bytes) {
  static GuardedAllocator& allocator = *new GuardedAllocator;
  state().most_bytes = most_bytes;
  c10::SetCPUAllocator(&allocator, kAllocatorPriority);
}

void set_guard(Guard guard, std::uint8_t pattern) {
  state().guard = guard;
  state().pattern = std::byte{pattern};
}

int take_damaged() {
  State& all = state();
  for (auto& [data, block] : all.live) {
    if (!is_whole(block)) ++all.damaged;
  }
  return std::exchange(all.damaged, 0);
}

}  // namespace stagecraft::test
