// The NCCL transport on a device without a GPU (test/support/fake_device.h): which lines programs need, that
// every launch waits for what was computed before, that whole runs equal the oracle to the bit, and how it
// ends when it goes wrong.

#include "engine/transport/nccl/nccl_transport.h"

#include "schedules/checker/nccl_rules.h"
#include "schedules/generators/registry.h"
#include "schedules/lowering/lowering.h"
#include "test/engine/case_list.h"
#include "test/engine/nccl_ranks.h"
#include "test/engine/tags.h"
#include "test/engine/transport_contract.h"
#include "test/support/catch.h"
#include "test/support/full.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

using namespace stagecraft;
using namespace stagecraft::test;
using transport::channels_of;

using transport::NcclChannel;
using transport::NcclWiring;

namespace {

/// What the contract's functions use: each payload both ways between all ranks.
NcclWiring all_pairs(int world) {
  NcclWiring wiring{.rules = TransportRules::nccl(), .channels = {}, .groups = {}};
  for (int from = 0; from < world; ++from) {
    for (int to = 0; to < world; ++to) {
      if (from == to) continue;
      for (const Payload payload : {Payload::activation, Payload::gradient}) {
        wiring.channels.push_back({Rank{from}, Rank{to}, {payload, StageId{}, StageId{}}});
      }
    }
  }
  return wiring;
}
/// Rank 0's device waits for what rank 1 never sends, after `trouble`; what the host is told in the end.
std::string message_of_rank_0(NcclRanks runner, const std::function<void(Transport&)>& trouble) {
  std::string heard;
  runner.prepare = [](Rank, FakeDevice& device) { device.let_compute_lag(); };
  CHECK_THROWS_AS(runner.run(2, all_pairs(2),
                             [&](Transport& transport) {
                               if (transport.rank().value == 1) {
                                 while (true) transport.progress();  // until it hears of rank 0
                               }
                               const at::Tensor tensor = at::zeros({4});
                               const RequestPtr receive =
                                   transport.post_receive(Rank{1}, kActivationTag, tensor);
                               trouble(transport);
                               try {
                                 transport.wait(*receive);
                                 while (true) transport.progress();
                               } catch (const PeerError& error) {
                                 heard = error.what();
                                 throw;
                               }
                             }),
                  PeerError);
  return heard;
}

}  // namespace

TEST_CASE("the nccl transport keeps the contract, but for tags", "[nccl]") {
  const int world = GENERATE(2, 3, 4);
  CAPTURE(world);
  for (const auto& promise :
       {equal_tags_keep_their_order, transfers_progress, collectives_agree, posted_sends_do_not_block}) {
    REQUIRE_NOTHROW(NcclRanks().run(world, all_pairs(world), promise));
  }
  REQUIRE_NOTHROW(NcclRanks().run(world, all_pairs(world), [](Transport& transport) {
    large_messages_arrive(transport, std::int64_t{8} << 20U);
  }));
}

TEST_CASE("runs over the nccl transport equal the oracle to the bit, under every schedule", "[nccl]") {
  int runs = 0;
  int boundaries = 0;  // of them need a channel per boundary
  for (const PipelineCase& pipeline : covering(Cover::values, std::vector{2, 3, 4})) {
    INFO(pipeline.name());
    const Setting setting(pipeline);
    const NcclWiring wiring = nccl_needs(setting);
    if (wiring.rules.channels == TransportRules::Channels::boundary) ++boundaries;
    CHECK(difference(run_over_nccl(setting, wiring), oracle_of(setting)) == "");
    ++runs;
  }
  std::cout << fmt::format(
      "{} runs over NCCL on a device without a GPU compared with the oracle, {} with a channel "
      "a boundary\n",
      runs, boundaries);
  CHECK(runs > 20);
  CHECK(boundaries > 0);
}

TEST_CASE("hosts may wait for their whole devices between any two layers", "[nccl]") {
  int waits_for_devices = 0;
  int turn = 0;
  for (const Schedule& schedule : schedules()) {
    for (const int ranks : {2, 3}) {
      const PipelineCase pipeline = at_home(schedule, ranks);
      if (pipeline.stages > 9 || !served(pipeline)) continue;
      INFO(pipeline.name());
      const Setting setting(pipeline);
      // One host in turn, where there are two, and all at once. A schedule has one of the two, or both.
      for (int waiting = ranks == 2 ? 0 : ranks; waiting <= ranks; ++waiting) {
        if (ranks == 2 && !full() && waiting < ranks && waiting != turn % 2) continue;
        INFO((waiting == ranks ? std::string("all ranks wait") : fmt::format("rank {} waits", waiting)));
        std::atomic<int> waits = 0;
        NcclRanks runner;
        runner.wait_for_device = [&](Rank rank) {
          const bool waits_here = waiting == ranks || rank.value == waiting;
          waits += waits_here ? 1 : 0;
          return waits_here;
        };
        CHECK(difference(run_over_nccl(setting, nccl_needs(setting), runner), oracle_of(setting)) == "");
        CHECK(waits > 0);
        waits_for_devices += waits;
      }
      ++turn;
    }
  }
  std::cout << fmt::format("{} waits for a device within runs over NCCL\n", waits_for_devices);
}

TEST_CASE("a rank that throws between any two layers ends the run on all ranks, soon", "[nccl]") {
  int faults = 0;
  for (const char* schedule : {"1f1b", "zb_v", "pipedream"}) {
    for (const bool replicas : {false, true}) {
      PipelineCase pipeline = at_home(find_schedule(schedule), 2);
      if (replicas) {
        if (find_schedule(schedule).virtual_stages > 1) continue;
        pipeline.ranks = 0;
        pipeline.widths = {2, 1};
      }
      if (!served(pipeline)) continue;
      const Setting setting(pipeline);
      const int ranks = setting.placement.world();
      INFO(pipeline.name());
      for (int failing = 0; failing < ranks; ++failing) {
        bool goes_on = true;
        for (int place = 0; goes_on; place += 1 + place / (full() ? 3 : 1)) {
          INFO("rank " << failing << " throws at look " << place);
          std::atomic<int> looks = 0;
          std::atomic<bool> threw = false;
          NcclRanks runner;
          runner.wait_for_device = [&](Rank rank) {
            if (rank.value == failing && looks++ == place) {
              threw = true;
              throw std::runtime_error("planted");
            }
            return false;
          };
          const auto begun = std::chrono::steady_clock::now();
          std::string said;
          try {
            (void)run_over_nccl(setting, nccl_needs(setting), runner);
          } catch (const std::exception& error) {
            said = error.what();
          }
          goes_on = threw;
          if (!threw) continue;  // the run had no so many looks
          INFO(said);
          CHECK(said != "");  // of the rank that threw, or of one that heard of it
          CHECK(std::chrono::steady_clock::now() - begun < std::chrono::seconds(15));
          ++faults;
        }
      }
    }
  }
  std::cout << fmt::format("{} faults between layers of runs over NCCL\n", faults);
  CHECK(faults > 30);
}

TEST_CASE("an abort of NCCL's that hangs does not keep a rank from failing", "[nccl]") {
  std::vector<std::shared_ptr<FakeDevice>> devices(2);
  std::atomic<double> took = 0;
  CHECK_THROWS_AS(
      run_ranks(2, {.timeout = Seconds{30}},
                [&](Transport& hosts) {
                  const std::size_t me = hosts.rank().index();
                  static const auto fabric = std::make_shared<FakeFabric>();
                  devices[me] = std::make_shared<FakeDevice>(fabric, me + 1);
                  transport::NcclTransport nccl(std::make_unique<DelayedTransport>(hosts, 1), devices[me],
                                                devices[me], all_pairs(2));
                  if (me == 1) {
                    while (true) nccl.progress();  // until it hears of rank 0
                  }
                  devices[me]->let_abort_hang(true);
                  const auto begun = std::chrono::steady_clock::now();
                  nccl.fail("planted");
                  took = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
                  devices[me]->let_abort_hang(false);
                }),
      PeerError);
  CHECK(took > 4);
  CHECK(took < 15);
}

TEST_CASE("tied weights and values that skip stages equal the oracle over the nccl transport", "[nccl]") {
  std::vector<PipelineCase> cases = skip_cases();
  for (const int ranks : {2, 3, 4}) {
    const std::vector<PipelineCase> tied = covering(Cover::values, tied_cases(ranks));
    for (std::size_t i = static_cast<std::size_t>(ranks) % stride<std::size_t>(3); i < tied.size();
         i += stride(std::size_t{3}))
      cases.push_back(tied[i]);
  }
  int boundaries = 0;  // of them need a channel per boundary
  for (const PipelineCase& pipeline : cases) {
    INFO(pipeline.name());
    const Setting setting(pipeline);
    const NcclWiring wiring = nccl_needs(setting);
    if (wiring.rules.channels == TransportRules::Channels::boundary) ++boundaries;
    CHECK(difference(run_over_nccl(setting, wiring), oracle_of(setting)) == "");
  }
  std::cout << fmt::format(
      "{} runs with ties or skips over NCCL on a device without a GPU compared with the oracle, {} with a "
      "channel per boundary\n",
      cases.size(), boundaries);
  CHECK(cases.size() > 30);
}

TEST_CASE("every schedule is proved under NCCL's rules, on the placement it is for", "[nccl]") {
  for (const int ranks : {2, 3, 4}) {
    for (const Schedule& schedule : schedules()) {
      const PipelineCase pipeline = at_home(schedule, ranks);
      if (pipeline.stages > 9 || !served(pipeline)) continue;
      INFO(pipeline.name());
      CHECK_NOTHROW(nccl_rules_for(programs_of(Setting(pipeline))));
    }
  }
}

TEST_CASE("channels are what programs need: a payload per direction", "[nccl]") {
  const TransportRules rules = TransportRules::nccl();
  const Setting straight(PipelineCase{.schedule = "1f1b", .stages = 3});
  const auto line = [](int from, int to, Payload payload) {
    return NcclChannel{Rank{from}, Rank{to}, {payload, StageId{}, StageId{}}};
  };
  const std::vector<NcclChannel> wanted{line(0, 1, Payload::activation), line(1, 0, Payload::gradient),
                                        line(1, 2, Payload::activation), line(2, 0, Payload::loss),
                                        line(2, 1, Payload::gradient)};
  CHECK((channels_of(programs_of(straight), rules) == wanted));
  // A validation pass alone has no gradients, but a loss.
  const LoweredProgram validation = lower(validation_program(straight.placement, 2));
  CHECK(channels_of({&validation}, rules).size() == 3);
}

TEST_CASE("a launch without an event of what was computed before is found", "[nccl]") {
  const auto fabric = std::make_shared<FakeFabric>();
  FakeDevice device(fabric, 1);
  const FakeDevice::Stream stream = device.make_stream();
  const FakeDevice::Event event = device.take_event();
  float number = 0;
  CHECK_THROWS_AS(device.send(0, stream, &number, sizeof number), InternalError);
  device.record(event, FakeDevice::Stream::compute);
  CHECK_THROWS_AS(device.send(0, stream, &number, sizeof number), InternalError);  // nobody waits for it
}

TEST_CASE("an event serves one launch: what is computed after it is not covered", "[nccl]") {
  const auto fabric = std::make_shared<FakeFabric>();
  FakeDevice sender(fabric, 1);
  FakeDevice receiver(fabric, 2);
  std::thread other([&] { receiver.open({{0, false, "one"}}, {}, Seconds{10}); });
  sender.open({{0, true, "one"}}, {}, Seconds{10});
  other.join();
  float sent = 3;
  float received = 0;
  const auto launch = [&](FakeDevice& device, bool send, FakeDevice::Stream stream, FakeDevice::Event event) {
    send ? device.send(0, stream, &sent, sizeof sent) : device.receive(0, stream, &received, sizeof received);
    device.record(event, stream);
  };
  const auto marked = [](FakeDevice& device, FakeDevice::Stream stream) {
    const FakeDevice::Event event = device.take_event();
    device.record(event, FakeDevice::Stream::compute);
    device.wait(stream, event);
    return event;
  };
  const FakeDevice::Stream out = sender.make_stream();
  const FakeDevice::Stream in = receiver.make_stream();
  launch(sender, true, out, marked(sender, out));
  const FakeDevice::Event arrived = marked(receiver, in);
  launch(receiver, false, in, arrived);
  receiver.wait(FakeDevice::Stream::compute, arrived);
  CHECK(received == 3);
  CHECK_THROWS_AS(sender.send(0, out, &sent, sizeof sent), InternalError);
}

TEST_CASE("a transfer that nobody answers ends with rank, peer and tag, without a wait of the host's",
          "[nccl]") {
  NcclRanks runner;
  runner.options.timeout = Seconds{0.3};
  const std::string heard = message_of_rank_0(runner, [](Transport&) {});
  for (const char* part : {"rank 0: receive of activation 7", "from rank 1", "after 0.3 s"}) {
    INFO(heard);
    CHECK(heard.find(part) != std::string::npos);
  }
}

TEST_CASE("a receive may be posted as long before it is needed as a program likes", "[nccl]") {
  NcclRanks runner;
  runner.options.timeout = Seconds{0.4};
  CHECK_NOTHROW(runner.run(2, all_pairs(2), [](Transport& transport) {
    const at::Tensor tensor = at::zeros({4});
    if (transport.rank().value == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1500));
      return transport.wait(*transport.start_send(Rank{0}, kActivationTag, tensor));
    }
    const RequestPtr receive = transport.post_receive(Rank{1}, kActivationTag, tensor);
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(1600);
    while (std::chrono::steady_clock::now() < until) transport.progress();
    transport.wait(*receive);
    transport.waits().enter(Phase::start_up);  // which has no part in this
  }));
}

TEST_CASE("a device that comes late to a wait, since it computes, has not waited", "[nccl]") {
  NcclRanks runner;
  runner.options.timeout = Seconds{0.5};
  std::atomic<bool> computed = false;
  std::vector<FakeDevice*> devices(2);
  runner.prepare = [&](Rank rank, FakeDevice& device) {
    device.let_compute_lag();
    devices[rank.index()] = &device;
  };
  const std::vector<at::Tensor> tensors{at::zeros({4}), at::zeros({4})};  // outlive what the devices still do
  CHECK_NOTHROW(runner.run(2, all_pairs(2), [&](Transport& transport) {
    const at::Tensor& tensor = tensors[transport.rank().index()];
    if (transport.rank().value == 1) {
      while (!computed) transport.progress();
      transport.wait(*transport.start_send(Rank{0}, kActivationTag, tensor));
    } else {
      devices[0]->compute([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(1500));
        computed = true;
      });
      const RequestPtr receive = transport.post_receive(Rank{1}, kActivationTag, tensor);
      transport.wait(*receive);
      while (!transport.test(*receive)) transport.progress();
    }
    transport.waits().enter(Phase::start_up);  // for the last barrier
  }));
}

TEST_CASE("what NCCL reports behind a launch ends the run with its words", "[nccl]") {
  const NcclRanks runner;
  const std::string heard =
      message_of_rank_0(runner, [&](Transport&) { runner.fabric->fail("unhandled system error"); });
  INFO(heard);
  CHECK(heard.find("NCCL says: unhandled system error") != std::string::npos);
}

TEST_CASE("more kinds of transfers than queues are refused", "[nccl]") {
  NcclRanks runner;
  runner.most_streams = 3;
  CHECK_THROWS_AS(runner.run(2, all_pairs(2), [](Transport&) {}), InputError);
}
