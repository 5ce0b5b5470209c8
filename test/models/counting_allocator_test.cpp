#include "models/tensors/counting_allocator.h"

#include "models/tensors/small_blocks.h"
#include "test/support/catch.h"

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>

#include <cstdint>
#include <cstdlib>
#include <thread>
#include <vector>

namespace stagecraft {
namespace {

at::Tensor kilobytes(std::int64_t n) { return at::empty({n * 256}); }

struct Installed {
  Installed() { install_counting_allocator(); }
};
const Installed installed;

}  // namespace

TEST_CASE("requested bytes are counted while they live, and their peak", "[counting_allocator]") {
  MemoryAccount account;
  const ChargeTo charge(account);
  at::Tensor a = kilobytes(3);
  CHECK(account.live() == Bytes{3072});
  {
    const at::Tensor b = kilobytes(5);
    const at::Tensor view = b.slice(0, 1, 2);
    CHECK(account.live() == Bytes{8192});
  }
  CHECK(account.live() == Bytes{3072});
  CHECK(account.peak() == Bytes{8192});
  account.reset_peak();
  CHECK(account.peak() == Bytes{3072});
  a = at::empty({7}, at::kByte);  // not rounded up to anything
  CHECK(account.live() == Bytes{7});
  CHECK(reinterpret_cast<std::uintptr_t>(a.data_ptr()) % 64 == 0);
}

TEST_CASE("accounts nest; without one nothing is counted", "[counting_allocator]") {
  MemoryAccount outer;
  MemoryAccount inner;
  const at::Tensor before = kilobytes(1);
  at::Tensor a;
  at::Tensor b;
  {
    const ChargeTo charge_outer(outer);
    {
      const ChargeTo charge_inner(inner);
      a = kilobytes(1);
    }
    b = kilobytes(2);
  }
  const at::Tensor after = kilobytes(1);
  CHECK(inner.live() == Bytes{1024});
  CHECK(outer.live() == Bytes{2048});
}

TEST_CASE("bytes go back to the account that paid, whoever frees them", "[counting_allocator]") {
  MemoryAccount account;
  at::Tensor tensor;
  std::thread([&] {
    const ChargeTo charge(account);
    tensor = kilobytes(4);
  }).join();
  CHECK(account.live() == Bytes{4096});
  MemoryAccount other;
  const ChargeTo charge(other);
  tensor.reset();
  CHECK(account.live() == Bytes{0});
  CHECK(other.live() == Bytes{0});
}

TEST_CASE("a tensor may outlive its account", "[counting_allocator]") {
  at::Tensor tensor;
  {
    MemoryAccount account;
    const ChargeTo charge(account);
    tensor = at::ones({100});
  }
  CHECK(tensor.sum().item<float>() == 100);
  tensor.resize_({100000});
  CHECK(tensor.numel() == 100000);
}

TEST_CASE("many threads on one account lose nothing", "[counting_allocator]") {
  MemoryAccount account;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      const ChargeTo charge(account);
      for (int i = 0; i < 2000; ++i) (void)kilobytes(1);
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(account.live() == Bytes{0});
  CHECK(account.peak() >= Bytes{1024});
  CHECK(account.peak() <= Bytes{4096});
}

TEST_CASE("raw allocations are counted too, as oneDNN makes them for its scratchpads",
          "[counting_allocator]") {
  MemoryAccount account;
  const ChargeTo charge(account);
  c10::Allocator& allocator = *c10::GetCPUAllocator();
  void* const memory = allocator.raw_allocate(640);
  CHECK(account.live() == Bytes{640});
  allocator.raw_deallocate(memory);
  CHECK(account.live() == Bytes{0});
  CHECK(at::gelu(kilobytes(4)).numel() == 1024);
}

TEST_CASE("small tensors get the memory that a tensor of about their size gave back",
          "[counting_allocator]") {
  CHECK(small_blocks::size_of(1) == 128);
  CHECK(small_blocks::size_of(129) == 256);
  CHECK(small_blocks::size_of(64 << 10) == 64 << 10);
  CHECK(small_blocks::size_of((64 << 10) + 1) == (64 << 10) + 1);
  const auto freed = [](std::int64_t bytes) {
    const at::Tensor tensor = at::empty({bytes}, at::kByte);
    tensor.fill_(7);  // all of it is there
    return tensor.data_ptr();
  };
  void* const before = freed(1000);
  const at::Tensor second = at::empty({1500}, at::kByte);
  CHECK(second.data_ptr() == before);
  CHECK(at::empty({1500}, at::kByte).data_ptr() != before);
  // Sizes around every step of the sizes that are kept, twice each, so that kept blocks are filled.
  for (std::int64_t bytes = 1; bytes < 200'000; bytes += bytes < 300 ? 1 : bytes / 7) {
    (void)freed(bytes);
    CHECK(reinterpret_cast<std::uintptr_t>(freed(bytes)) % 64 == 0);
  }
}

TEST_CASE("a thread keeps little of what others made, and nothing when it ends", "[counting_allocator]") {
  std::vector<at::Tensor> made;
  made.reserve(20'000);
  for (int i = 0; i < 20'000; ++i) made.push_back(at::empty({1000}, at::kByte));  // 20 MB
  std::thread([&] { made.clear(); }).join();
  CHECK(at::ones({1000}, at::kByte).sum().item<std::int64_t>() == 1000);
  void* block = nullptr;
  for (int kept = 0; kept < 10'000; ++kept) {
    block = std::malloc(1024);
    if (!small_blocks::keep(block, 1024, std::free)) break;
    REQUIRE(kept < 4096);  // of 1 KiB each
  }
  std::free(block);
  while (void* const taken = small_blocks::take(1024)) std::free(taken);
}

}  // namespace stagecraft
