// Wire over c10d's Gloo, whose own headers the wheel has not: what is used here is c10d's interface.

#include "base/error.h"
#include "engine/transport/c10d/first_line.h"
#include "engine/transport/c10d/wire.h"

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <chrono>
#include <mutex>
#include <utility>
#include <vector>

namespace stagecraft::transport {
namespace {

/// Not for ever, which a clock could not add to its time. A shorter wait would end Gloo's connections.
constexpr std::chrono::milliseconds kForever = std::chrono::hours(24 * 365 * 10);

PeerError broken(const char* call, const std::exception& error) {
  return PeerError(fmt::format("{} failed: {}", call, first_line(error)));
}

class GlooMove final : public Wire::Move {
 public:
  explicit GlooMove(c10::intrusive_ptr<c10d::Work> work) : work_(std::move(work)) {}
  bool wait() override {
    try {
      return work_->wait(kForever);
    } catch (const std::exception& error) {
      throw broken("a transfer over Gloo", error);
    }
  }
  void interrupt() override { work_->abort(); }

 private:
  c10::intrusive_ptr<c10d::Work> work_;
};

class GlooWire final : public Wire {
 public:
  explicit GlooWire(c10::intrusive_ptr<c10d::Backend> backend) : backend_(std::move(backend)) {}
  [[nodiscard]] Rank rank() const override { return Rank{backend_->getRank()}; }
  [[nodiscard]] int world() const override { return backend_->getSize(); }

  std::unique_ptr<Move> send(Rank to, int tag, const void* bytes, std::size_t size) override {
    std::vector<at::Tensor> tensors{tensor_over(const_cast<void*>(bytes), size)};
    const std::lock_guard lock(mutex_);
    try {
      return std::make_unique<GlooMove>(backend_->send(tensors, to.value, tag));
    } catch (const std::exception& error) {
      throw broken("a send over Gloo", error);
    }
  }
  std::unique_ptr<Move> receive(Rank from, int tag, void* bytes, std::size_t size) override {
    std::vector<at::Tensor> tensors{tensor_over(bytes, size)};
    const std::lock_guard lock(mutex_);
    try {
      return std::make_unique<GlooMove>(backend_->recv(tensors, from.value, tag));
    } catch (const std::exception& error) {
      throw broken("a receive over Gloo", error);
    }
  }

 private:
  static at::Tensor tensor_over(void* bytes, std::size_t size) {
    return at::from_blob(bytes, {static_cast<std::int64_t>(size)}, at::kByte);
  }

  std::mutex mutex_;  ///< c10d counts its calls, and promises nothing to several threads
  c10::intrusive_ptr<c10d::Backend> backend_;
};

}  // namespace

std::unique_ptr<Wire> make_c10d_wire(const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  c10::intrusive_ptr<c10d::Backend> backend;
  try {
    backend = group->getBackend(at::kCPU);
  } catch (const std::exception&) {
    // Told below: c10d throws where a group has no backend for this memory.
  }
  if (!backend || backend->getBackendName() != "gloo") {
    throw InputError(
        fmt::format("the process group carries the CPU's memory by {}, and Stagecraft's ranks talk over "
                    "gloo: make one by "
                    "torch.distributed.new_group(backend=\"gloo\")",
                    backend ? backend->getBackendName() : "nothing"));
  }
  return std::make_unique<GlooWire>(std::move(backend));
}

std::unique_ptr<Wire> make_c10d_wire(const std::string& group_name) {
  c10::intrusive_ptr<c10d::ProcessGroup> group;
  try {
    group = c10d::resolve_process_group(group_name);
  } catch (const std::exception&) {
    throw InputError(fmt::format("no process group of torch.distributed is named \"{}\"", group_name));
  }
  return make_c10d_wire(group);
}

}  // namespace stagecraft::transport
