// The staged transport on a device without a GPU (test/support/fake_device.h), over the local transport: the
// whole contract, whole runs that equal the oracle to the bit, and how it ends when it goes wrong.

#include "engine/transport/staged/staged_transport.h"

#include "test/engine/delays.h"
#include "test/engine/over_hosts_cases.h"
#include "test/engine/tags.h"
#include "test/support/fake_device.h"
#include "test/support/ranks.h"

#include <ATen/ATen.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>

using namespace stagecraft;
using namespace stagecraft::test;
using transport::StagedTransport;

namespace {

void run_staged(int world, const TransportOptions& options, const std::function<void(Transport&)>& body) {
  run_ranks(world, options, [&](Transport& hosts) {
    const auto seed = static_cast<std::uint64_t>(hosts.rank().value) + 1;
    StagedTransport staged(std::make_unique<DelayedTransport>(hosts, seed),
                           std::make_shared<FakeDevice>(std::make_shared<FakeFabric>(), seed));
    try {
      body(staged);
    } catch (const std::exception& error) {
      staged.fail(error.what());
      throw;
    }
  });
}

}  // namespace

TEST_CASE("the staged transport keeps the contract", "[staged]") {
  const int world = GENERATE(1, 2, 3, 4);
  CAPTURE(world);
  keeps_the_contract(run_staged, world);
}

TEST_CASE("runs over the staged transport equal the oracle to the bit", "[staged]") {
  runs_equal_the_oracle(run_staged, "staged");
}

TEST_CASE("a tensor may be used again when its send was waited for, while the message is still here",
          "[staged]") {
  REQUIRE_NOTHROW(run_staged(2, {.timeout = Seconds{30}}, [](Transport& transport) {
    const at::Tensor tensor = at::full({1000}, 3);
    if (transport.rank().value == 0) {
      transport.wait(*transport.start_send(Rank{1}, kActivationTag, tensor));  // nobody has posted a receive
      tensor.fill_(4);
      transport.barrier();
      return;
    }
    transport.barrier();
    const RequestPtr receive = transport.post_receive(Rank{0}, kActivationTag, tensor);
    transport.wait(*receive);
    if (!at::equal(tensor, at::full({1000}, 3))) throw std::runtime_error("the wrong values arrived");
  }));
}

TEST_CASE("a staged transfer that nobody answers names rank, peer and tag", "[staged]") {
  an_unanswered_transfer_is_named(run_staged);
}
