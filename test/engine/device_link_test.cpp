// The probe of links on devices without a GPU: over each transport that a run may have, between the devices'
// memory.

#include "base/error.h"
#include "engine/transport/link_probe.h"
#include "test/engine/on_devices.h"
#include "test/support/catch.h"

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

using namespace stagecraft;
using namespace stagecraft::test;

namespace {

/// Wants tensors of the device, as a GPU's transport does.
class OnDeviceOnly final : public DelayedTransport {
 public:
  explicit OnDeviceOnly(Transport& inner) : DelayedTransport(inner, 1), its_(inner) {}
  explicit OnDeviceOnly(std::unique_ptr<Transport> inner)
      : DelayedTransport(*inner, 1), its_(*inner), kept_(std::move(inner)) {}
  RequestPtr post_receive(Rank from, const Tag& tag, const at::Tensor& into) override {
    STAGECRAFT_CHECK(into.device() == fake_accelerator(), "a tensor of the host");
    return its_.post_receive(from, tag, into);
  }
  RequestPtr start_send(Rank to, const Tag& tag, const at::Tensor& tensor) override {
    STAGECRAFT_CHECK(tensor.device() == fake_accelerator(), "a tensor of the host");
    return its_.start_send(to, tag, tensor);
  }
  void wait(Request& request) override { its_.wait(request); }

 private:
  Transport& its_;
  std::unique_ptr<Transport> kept_;
};

}  // namespace

TEST_CASE("a link is probed over the transport of a run and between devices' memory", "[device_links]") {
  const Wrap nccl = [](std::unique_ptr<Transport> hosts, std::shared_ptr<FakeDevice> device) {
    return std::make_unique<transport::NcclTransport>(std::move(hosts), device, device, probe_wiring());
  };
  for (const Wrap& wrap : {nccl, Wrap(direct)}) {  // staged: below
    std::vector<ProbedLink> links(2);
    run_on_devices(2, wrap, [&](Transport& transport) {
      OnDeviceOnly watched(transport);
      links[transport.rank().index()] = probe_link(watched, fake_accelerator());
    });
    CHECK(links[0].latency > Seconds{0});
    CHECK(links[0].latency < Seconds{0.1});
    CHECK(links[0].bytes_per_second > 1e6);
    CHECK(links[0].bytes_per_second < 1e13);
    for (const ProbedLink& link : links) {
      CHECK(link.latency == links[0].latency);
      CHECK(link.latency_spread == links[0].latency_spread);
      CHECK(link.bytes_per_second_spread == links[0].bytes_per_second_spread);
      CHECK(link.bytes_per_second == links[0].bytes_per_second);
    }
  }
}

TEST_CASE("several links are probed at once, and all ranks hear of all", "[device_links]") {
  const std::vector<RankPair> pairs{{Rank{0}, Rank{2}}, {Rank{3}, Rank{1}}};
  const Wrap nccl = [&](std::unique_ptr<Transport> hosts, std::shared_ptr<FakeDevice> device) {
    return std::make_unique<transport::NcclTransport>(std::move(hosts), device, device, probe_wiring(pairs));
  };
  std::vector<std::vector<ProbedLink>> links(4);
  run_on_devices(4, nccl, [&](Transport& transport) {
    OnDeviceOnly watched(transport);
    links[transport.rank().index()] = probe_links(watched, fake_accelerator(), pairs);
  });
  for (const std::vector<ProbedLink>& heard : links) {
    REQUIRE(heard.size() == 2);
    for (std::size_t pair = 0; pair < 2; ++pair) {
      CHECK(heard[pair].bytes_per_second == links[0][pair].bytes_per_second);
      CHECK(heard[pair].latency > Seconds{0});
    }
  }
}

TEST_CASE("ranks that are threads probe what goes through the hosts' memory", "[device_links]") {
  const auto fabric = std::make_shared<FakeFabric>();
  std::atomic<int> made = 0;
  const Link link = probe_local_link(
      {fake_accelerator(), fake_accelerator()}, [&](std::unique_ptr<Transport> hosts, c10::Device device) {
        ++made;
        STAGECRAFT_CHECK(device == fake_accelerator(), "another device");
        const auto streams = std::make_shared<FakeDevice>(fabric, 1);
        return std::make_unique<OnDeviceOnly>(staged(std::move(hosts), streams));
      });
  CHECK(made == 2);
  CHECK(link.latency > Seconds{0});
  CHECK(link.bytes_per_second > 1e6);
}
