#include "models/tensors/counting_allocator.h"

#include "base/machine_memory.h"
#include "base/table.h"
#include "models/tensors/small_blocks.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <atomic>
#include <cstddef>
#include <limits>
#include <mutex>
#include <new>

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace stagecraft {

struct MemoryAccount::Counters {
  std::atomic<std::int64_t> live{0};
  std::atomic<std::int64_t> peak{0};

  void charge(std::int64_t bytes) {
    const std::int64_t now = live.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    std::int64_t most = peak.load(std::memory_order_relaxed);
    while (now > most && !peak.compare_exchange_weak(most, now, std::memory_order_relaxed)) {
    }
  }
  void discharge(std::int64_t bytes) { live.fetch_sub(bytes, std::memory_order_relaxed); }
};

/// The allocator's way into accounts.
struct AccountAccess {
  using Counters = MemoryAccount::Counters;
  static const std::shared_ptr<Counters>& counters(const MemoryAccount& account) { return account.counters_; }
};

namespace {

using Counters = AccountAccess::Counters;

/// The account of this thread's innermost ChargeTo.
thread_local const std::shared_ptr<Counters>* charged = nullptr;

/// Stands in front of every block: who pays (null: nobody), how much. Keeps the counters alive, since a
/// tensor may outlive the account it was charged to.
struct Header {
  std::shared_ptr<Counters> counters;
  std::int64_t bytes;
};
constexpr std::size_t kHeaderSize = 64;  // keeps LibTorch's alignment of 64
static_assert(sizeof(Header) <= kHeaderSize);

/// The context of a block is its data pointer, so that the raw interface works: oneDNN's scratchpads use it.
class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &release, c10::Device(c10::kCPU)};
    auto* const base = static_cast<std::byte*>(memory_for(bytes));
    auto* const header = new (base) Header{nullptr, static_cast<std::int64_t>(bytes)};
    if (charged != nullptr) {
      header->counters = *charged;
      header->counters->charge(header->bytes);
    }
    return {base + kHeaderSize, base + kHeaderSize, &release, c10::Device(c10::kCPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }

  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  [[nodiscard]] static std::size_t size_for(std::size_t bytes) {
    return small_blocks::size_of(bytes + kHeaderSize);
  }

  /// With room for the header. Throws c10::OutOfMemoryError that says how much there would have been.
  static void* memory_for(std::size_t bytes) {
    const std::size_t size = size_for(bytes);
    if (void* const kept = small_blocks::take(size)) return kept;
    try {
      return inner().allocate(size).release_context();
    } catch (const c10::Error&) {
      const Bytes asked{static_cast<std::int64_t>(bytes)};
      const auto limit = tightest(memory_limits());
      C10_THROW_ERROR(OutOfMemoryError,
                      fmt::format("out of memory: {} ({} bytes) are asked for one tensor{}",
                                  format_bytes(asked), bytes, limit ? "; " + describe_limit(*limit) : ""));
    }
  }

  static c10::Allocator& inner() {
    static c10::Allocator& allocator = *c10::GetDefaultCPUAllocator();
    return allocator;
  }

  static void release(void* data) {
    if (data == nullptr) return;
    void* const base = static_cast<std::byte*>(data) - kHeaderSize;
    auto* const header = static_cast<Header*>(base);
    if (header->counters != nullptr) header->counters->discharge(header->bytes);
    const std::size_t size = size_for(static_cast<std::size_t>(header->bytes));
    header->~Header();
    if (!small_blocks::keep(base, size, inner().raw_deleter())) inner().raw_deleter()(base);
  }
};

}  // namespace

MemoryAccount::MemoryAccount() : counters_(std::make_shared<Counters>()) {}

Bytes MemoryAccount::live() const { return Bytes{counters_->live.load(std::memory_order_relaxed)}; }
Bytes MemoryAccount::peak() const { return Bytes{counters_->peak.load(std::memory_order_relaxed)}; }
void MemoryAccount::reset_peak() {
  counters_->peak.store(counters_->live.load(std::memory_order_relaxed), std::memory_order_relaxed);
}

ChargeTo::ChargeTo(MemoryAccount& account) : previous_(const_cast<std::shared_ptr<Counters>*>(charged)) {
  charged = &AccountAccess::counters(account);
}

ChargeTo::~ChargeTo() { charged = static_cast<const std::shared_ptr<Counters>*>(previous_); }

void install_counting_allocator() {
  static std::once_flag once;
  std::call_once(once, [] {
#ifdef __GLIBC__
    // Every step asks for the same blocks again: giving them back to the system in between costs page faults,
    // 4 % of a small GPT's step. 32 MiB is the most glibc takes from its heap; larger blocks are mapped one
    // by one.
    ::mallopt(M_MMAP_THRESHOLD, 32 << 20);
    ::mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
    ::mallopt(M_TOP_PAD, 64 << 20);
#endif
    // Never destroyed: tensors with static storage are freed through it at exit.
    static auto* const allocator = new CountingAllocator;
    c10::SetCPUAllocator(allocator, /*priority=*/100);
  });
}

}  // namespace stagecraft
