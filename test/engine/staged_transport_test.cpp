// The staged transport on a device without a GPU (test/support/fake_device.h), over the local transport: the
// whole contract, whole runs that equal the oracle to the bit, and how it ends when it goes wrong.

#include "engine/transport/staged/staged_transport.h"

#include "schedules/base/error.h"
#include "test/engine/case_list.h"
#include "test/engine/delays.h"
#include "test/engine/transport_contract.h"
#include "test/support/catch.h"
#include "test/support/fake_device.h"
#include "test/support/ranks.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <functional>
#include <iostream>
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
                           std::make_shared<FakeDevice>(std::make_shared<FakeFabric>(), seed), options);
    try {
      body(staged);
    } catch (const std::exception& error) {
      staged.fail(error.what());
      throw;
    }
  });
}

std::string run_staged(const PipelineCase& pipeline) {
  const Setting setting(pipeline);
  const OracleResult& oracle = oracle_of(setting);
  std::vector<std::string> differences(static_cast<std::size_t>(setting.placement.world()));
  run_staged(setting.placement.world(), {.timeout = Seconds{60}}, [&](Transport& staged) {
    const Outcome outcome = run_rank(setting, staged);
    differences[staged.rank().index()] = difference(outcome, oracle, staged.rank().value == 0);
  });
  for (const std::string& text : differences) {
    if (!text.empty()) return text;
  }
  return "";
}

const Tag kTag{
    .payload = Payload::activation, .from = StageId{0}, .to = StageId{1}, .micro_batch = MicroBatch{7}};

}  // namespace

TEST_CASE("the staged transport keeps the contract", "[staged]") {
  const int world = GENERATE(1, 2, 3, 4);
  CAPTURE(world);
  const TransportOptions options{.timeout = Seconds{30}};
  for (const auto& promise : {tags_match, equal_tags_keep_their_order, transfers_progress, collectives_agree,
                              posted_sends_do_not_block}) {
    REQUIRE_NOTHROW(run_staged(world, options, promise));
  }
  if (world > 1) REQUIRE_NOTHROW(run_staged(world, options, background_work_goes_on));
  REQUIRE_NOTHROW(run_staged(world, options, [](Transport& transport) {
    large_messages_arrive(transport, std::int64_t{8} << 20U);
  }));
}

TEST_CASE("runs over the staged transport equal the oracle to the bit", "[staged]") {
  int runs = 0;
  for (const int ranks : {2, 3, 4}) {
    const std::vector<PipelineCase> all = all_cases(ranks);
    for (std::size_t i = static_cast<std::size_t>(ranks) + 1; i < all.size(); i += 47) {
      INFO(all[i].name());
      CHECK(run_staged(all[i]) == "");
      ++runs;
    }
  }
  std::cout << fmt::format("{} runs over the staged transport compared with the oracle\n", runs);
}

TEST_CASE("a tensor may be used again when its send was waited for, while the message is still here",
          "[staged]") {
  REQUIRE_NOTHROW(run_staged(2, {.timeout = Seconds{30}}, [](Transport& transport) {
    const at::Tensor tensor = at::full({1000}, 3);
    if (transport.rank().value == 0) {
      transport.wait(*transport.start_send(Rank{1}, kTag, tensor));  // nobody has posted a receive
      tensor.fill_(4);
      transport.barrier();
      return;
    }
    transport.barrier();
    const RequestPtr receive = transport.post_receive(Rank{0}, kTag, tensor);
    transport.wait(*receive);
    if (!at::equal(tensor, at::full({1000}, 3))) throw std::runtime_error("the wrong values arrived");
  }));
}

TEST_CASE("a staged transfer that nobody answers names rank, peer and tag", "[staged]") {
  std::string heard;
  CHECK_THROWS_AS(run_staged(2, {.timeout = Seconds{0.3}},
                             [&](Transport& transport) {
                               if (transport.rank().value == 1) {
                                 while (true) transport.progress();  // until it hears of rank 0
                               }
                               const at::Tensor tensor = at::zeros({4});
                               const RequestPtr receive = transport.post_receive(Rank{1}, kTag, tensor);
                               try {
                                 transport.wait(*receive);
                               } catch (const PeerError& error) {
                                 heard = error.what();
                                 throw;
                               }
                             }),
                  PeerError);
  INFO(heard);
  for (const char* part : {"rank 0: receive of activation 7", "from rank 1", "after 0.3 s"}) {
    CHECK(heard.find(part) != std::string::npos);
  }
}
