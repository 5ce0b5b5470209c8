// The direct transport on a device without a GPU (test/support/fake_device.h), over a local transport that
// takes its memory: the whole contract, whole runs that equal the oracle to the bit, and that nothing is sent
// or received before the device is done.

#include "engine/transport/direct/direct_transport.h"

#include "test/engine/device_memory_hosts.h"
#include "test/engine/over_hosts_cases.h"
#include "test/engine/tags.h"
#include "test/support/demand.h"
#include "test/support/fake_device.h"
#include "test/support/ranks.h"

#include <ATen/ATen.h>

#include <atomic>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using namespace stagecraft;
using namespace stagecraft::test;

namespace {

std::uint64_t seed_of(const Transport& hosts) { return static_cast<std::uint64_t>(hosts.rank().value) + 1; }

std::shared_ptr<FakeDevice> device_of(const Transport& hosts) {
  return std::make_shared<FakeDevice>(std::make_shared<FakeFabric>(), seed_of(hosts));
}

void run_direct(int world, const TransportOptions& options, const std::function<void(Transport&)>& body) {
  run_ranks(world, options, [&](Transport& hosts) {
    const auto direct = make_transport_over_hosts(std::make_unique<DeviceMemoryHosts>(hosts, seed_of(hosts)),
                                                  device_of(hosts));
    try {
      body(*direct);
    } catch (const std::exception& error) {
      direct->fail(error.what());
      throw;
    }
  });
}

/// A device that computes until it is told to be done. `hesitant`: then it is so between one question and the
/// next, and again.
class BusyDevice final : public DeviceStreams {
 public:
  BusyDevice(std::shared_ptr<DeviceStreams> inner, bool hesitant)
      : inner_(std::move(inner)), hesitant_(hesitant) {}
  void be_done() { busy_ = false; }

  [[nodiscard]] Stream make_stream() override { return inner_->make_stream(); }
  [[nodiscard]] int most_streams() const override { return inner_->most_streams(); }
  [[nodiscard]] Event take_event() override { return inner_->take_event(); }
  [[nodiscard]] Event take_timed_event() override { return inner_->take_timed_event(); }
  [[nodiscard]] Seconds between(Event begin, Event end) override { return inner_->between(begin, end); }
  void give_event(Event event) override { inner_->give_event(event); }
  void record(Event event, Stream stream) override { inner_->record(event, stream); }
  void wait(Stream stream, Event event) override { inner_->wait(stream, event); }
  [[nodiscard]] bool over(Event event) override {
    if (busy_ || (hesitant_ && ++asked_ % 2 == 1)) return false;
    return inner_->over(event);
  }
  void copy(Stream stream, void* to, const void* from, std::size_t bytes) override {
    inner_->copy(stream, to, from, bytes);
  }
  [[nodiscard]] std::shared_ptr<void> host_memory(std::size_t bytes) override {
    return inner_->host_memory(bytes);
  }

 private:
  std::shared_ptr<DeviceStreams> inner_;
  bool busy_ = true, hesitant_;
  int asked_ = 0;
};

}  // namespace

TEST_CASE("tensors go directly where the hosts' transport takes a device's memory, staged elsewhere",
          "[direct]") {
  run_ranks(2, {}, [&](Transport& hosts) {
    const auto direct =
        make_transport_over_hosts(std::make_unique<DeviceMemoryHosts>(hosts, 1), device_of(hosts));
    demand(direct->name() == "local, CUDA-aware", direct->name());
    const auto staged =
        make_transport_over_hosts(std::make_unique<DelayedTransport>(hosts, 1), device_of(hosts));
    demand(staged->name() == "local, staged", staged->name());
  });
}

TEST_CASE("the direct transport keeps the contract", "[direct]") {
  const int world = GENERATE(1, 2, 3, 4);
  CAPTURE(world);
  keeps_the_contract(run_direct, world);
}

TEST_CASE("runs over the direct transport equal the oracle to the bit", "[direct]") {
  runs_equal_the_oracle(run_direct, "direct");
}

TEST_CASE("nothing is sent or received before the device is done with what was launched before", "[direct]") {
  REQUIRE_NOTHROW(run_ranks(2, {.timeout = Seconds{30}}, [](Transport& local) {
    auto owned = std::make_unique<DeviceMemoryHosts>(local, seed_of(local));
    const DeviceMemoryHosts& hosts = *owned;
    const Rank peer{1 - local.rank().value};
    const bool sends = peer.value == 1;
    const auto device = std::make_shared<BusyDevice>(device_of(local), /*hesitant=*/sends);
    transport::DirectTransport direct(std::move(owned), device);
    std::vector<at::Tensor> tensors;
    std::vector<RequestPtr> requests;
    for (int k = 0; k < 3; ++k) {  // of one tag: in this order
      tensors.push_back(at::zeros({1000}));
      requests.push_back(sends ? direct.start_send(peer, kActivationTag, tensors.back())
                               : direct.post_receive(peer, kActivationTag, tensors.back()));
      if (sends) tensors.back().fill_(k);  // the device computes what is sent, and is not done
    }
    for (int look = 0; look < 10; ++look) {
      direct.progress();
      demand(!direct.test(*requests.front()), "a transfer is over that cannot have begun");
    }
    demand(hosts.begun() == 0, "a transfer has begun before the device was done");
    device->be_done();
    direct.barrier();  // hands all of them over
    demand(hosts.begun() == 3, "a collective has begun before transfers that nobody may look for afterwards");
    for (int k = 0; k < 3; ++k) {
      direct.wait(*requests[static_cast<std::size_t>(k)]);
      demand(at::equal(tensors[static_cast<std::size_t>(k)], at::full({1000}, k)), "the wrong values");
    }
  }));
}

TEST_CASE("a tensor may be used again when its message has been taken, and a wait for its send ends then",
          "[direct]") {
  std::atomic<bool> handed_over = false, used_again = false;
  REQUIRE_NOTHROW(run_ranks(2, {.timeout = Seconds{30}}, [&](Transport& local) {
    auto owned = std::make_unique<DeviceMemoryHosts>(local, seed_of(local));
    const DeviceMemoryHosts& hosts = *owned;
    transport::DirectTransport direct(std::move(owned), device_of(local));
    const at::Tensor tensor = at::full({1000}, 3);
    if (direct.rank().value == 0) {
      const RequestPtr send = direct.start_send(Rank{1}, kActivationTag, tensor);
      while (hosts.begun() == 0) direct.progress();
      handed_over = true;
      direct.wait(*send);
      used_again = true;
      tensor.fill_(4);
      return;
    }
    while (!handed_over) direct.progress();
    for (int turn = 0; turn < 10000 && !used_again; ++turn) std::this_thread::yield();
    demand(!used_again, "the wait has ended while the message was still in the tensor");
    direct.wait(*direct.post_receive(Rank{0}, kActivationTag, tensor.zero_()));
    demand(at::equal(tensor, at::full({1000}, 3)), "the wrong values");
  }));
}

TEST_CASE("a direct transfer that nobody answers names rank, peer and tag", "[direct]") {
  an_unanswered_transfer_is_named(run_direct);
}
