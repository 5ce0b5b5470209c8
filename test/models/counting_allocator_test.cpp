#include "stagecraft/models/counting_allocator.h"

#include "test/support/catch.h"

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>

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

}  // namespace stagecraft
