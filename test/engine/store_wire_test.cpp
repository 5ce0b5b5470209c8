// Ranks that have torchrun's store alone: the c10d transport over it, and NCCL beside that. A store of this process;
// over torchrun's own: test/scripts/c10d_test.py.

#include "engine/transport/c10d/store_wire.h"

#include "base/stopwatch.h"
#include "test/engine/c10d_sessions.h"
#include "test/engine/nccl_ranks.h"
#include "test/engine/over_hosts_cases.h"
#include "test/support/catch.h"
#include "test/support/demand.h"

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <chrono>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

using namespace stagecraft;
using namespace stagecraft::test;
using transport::agreed_name;
using transport::make_store_wire;

namespace {

/// That of this process, and a connection to it.
struct Served {
  c10::intrusive_ptr<c10d::TCPStore> server = c10::make_intrusive<c10d::TCPStore>(
      "127.0.0.1", c10d::TCPStoreOptions{.port = 0, .isServer = true, .waitWorkers = false});
  c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::TCPStore>(
      "127.0.0.1", c10d::TCPStoreOptions{.port = server->getPort(), .waitWorkers = false});
};

void run_over_store(int world, const TransportOptions& options, const std::function<void(Transport&)>& body) {
  const Served served;
  const auto wire = [&](Rank rank) {
    const std::string name = agreed_name(*served.store, rank, world, Seconds{30});
    return make_store_wire(served.store, name, rank, world);
  };
  run_transports(world, wire, options, body);
}

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("c10d's transport keeps its contract over a store", "[store_wire]") {
  const int world = GENERATE(2, 3);
  const TransportOptions options{.timeout = Seconds{30}, .text_piece = 1000};
  for (const auto& promise : {tags_match, equal_tags_keep_their_order, transfers_progress, collectives_agree,
                              agreements_come_late, texts_are_gathered, posted_sends_do_not_block}) {
    REQUIRE_NOTHROW(run_over_store(world, options, promise));
  }
  an_unanswered_transfer_is_named(run_over_store);
  run_over_store(world, options, [](Transport& transport) {
    demand(!transport.carries_tensors(), "it says that it carries tensors");
  });
}

TEST_CASE("runs over NCCL need no more of their hosts than a store", "[store_wire]") {
  for (const char* schedule : {"1f1b", "zb_h1", "pipedream"}) {
    PipelineCase pipeline{.schedule = schedule, .stages = 2, .widths = {2, 1}, .shape = BatchShape::many};
    const Setting setting(pipeline);
    NcclRanks ranks;
    ranks.run_hosts = run_over_store;
    INFO(pipeline.name());
    CHECK(difference(run_over_nccl(setting, nccl_needs(setting), ranks), oracle_of(setting)) == "");
  }
}

TEST_CASE("starts over one store each have a name of their own, whatever earlier ones left", "[store_wire]") {
  const auto store = c10::make_intrusive<c10d::HashStore>();  // as good as another for this
  constexpr int kWorld = 3;
  std::set<std::string> names;
  for (int start = 0; start < 3; ++start) {
    std::vector<std::string> agreed(kWorld);
    run_as_ranks(kWorld, [&](Rank rank) {
      // Now this one comes late, now that one.
      if (rank.value == start) std::this_thread::sleep_for(std::chrono::milliseconds(30));
      agreed[rank.index()] = agreed_name(*store, rank, kWorld, Seconds{30});
    });
    CHECK(agreed[1] == agreed[0]);
    CHECK(agreed[2] == agreed[0]);
    CHECK(names.insert(agreed[0]).second);
  }
  const std::string missing = refusal([&] { (void)agreed_name(*store, Rank{0}, 2, Seconds{0.05}); });
  CHECK(missing == "rank 1 does not come: its process has not started, or ended at once");
}

TEST_CASE("a store that is gone ends what waits on it, and a wire ends without one", "[store_wire]") {
  Served served;
  auto wire = make_store_wire(served.store, "some", Rank{0}, 2);
  const auto other = make_store_wire(served.store, "some", Rank{1}, 2);
  int number = 0;
  const int sent = 7;
  { const auto forgotten = wire->receive(Rank{1}, 3, &number, sizeof number); }  // is not written to later
  const auto first = wire->receive(Rank{1}, 3, &number, sizeof number);
  CHECK(other->send(Rank{0}, 3, &sent, sizeof sent)->wait());
  CHECK(first->wait());
  CHECK(number == sent);
  const auto never = wire->receive(Rank{1}, 4, &number, sizeof number);
  never->interrupt();
  CHECK_FALSE(never->wait());
  served.server.reset();
  CHECK(refusal([&] { (void)never->wait(); }).starts_with("torchrun's store fails: "));
  Stopwatch stopwatch;
  CHECK_NOTHROW(wire.reset());
  CHECK(stopwatch.read() < Seconds{60});
}

TEST_CASE("a launcher's store is told by the environment", "[store_wire]") {
  std::map<std::string, std::string> variables;
  const Environment environment = [&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
  const LaunchInfo launch{.world = 2, .rank = 1, .variable = "WORLD_SIZE=2", .torch = true};
  CHECK_FALSE(transport::has_launcher_store(environment));
  variables = {{"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "29500x"}};
  CHECK(transport::has_launcher_store(environment));
  const auto connect = [&] { (void)transport::make_launcher_wire(launch, Seconds{0.5}, environment); };
  CHECK(refusal(connect) == "MASTER_PORT is \"29500x\"; expected the port of torchrun's store");
  variables["MASTER_PORT"] = "1";
  CHECK(refusal(connect).starts_with("torchrun's store at 127.0.0.1:1 does not answer: "));
}
