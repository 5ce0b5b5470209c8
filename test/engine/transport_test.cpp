#include "engine/transport/factory.h"
#include "engine/transport/mpi/mpi_tag.h"
#include "test/engine/transport_contract.h"
#include "test/support/catch.h"
#include "test/support/ranks.h"

#include <ATen/ATen.h>

#include <atomic>
#include <memory>
#include <set>
#include <thread>

using namespace stagecraft;
using namespace stagecraft::test;

namespace {
const Tag kTag{.payload = Payload::activation, .from = StageId{1}, .to = StageId{2}, .number = 7};

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}
}  // namespace

TEST_CASE("local transport keeps the contract", "[transport]") {
  const int world = GENERATE(1, 2, 3, 5);
  const bool synchronous = GENERATE(false, true);
  CAPTURE(world, synchronous);
  const TransportOptions options{.timeout = Seconds{30}, .synchronous_sends = synchronous};
  REQUIRE_NOTHROW(run_ranks(world, options, tags_match));
  REQUIRE_NOTHROW(run_ranks(world, options, equal_tags_keep_their_order));
  REQUIRE_NOTHROW(run_ranks(world, options, transfers_progress));
  REQUIRE_NOTHROW(run_ranks(world, options, collectives_agree));
  REQUIRE_NOTHROW(run_ranks(world, options, agreements_come_late));
  REQUIRE_NOTHROW(run_ranks(world, options, texts_are_gathered));
  REQUIRE_NOTHROW(run_ranks(world, options, posted_sends_do_not_block));
  if (world > 1) REQUIRE_NOTHROW(run_ranks(world, options, background_work_goes_on));
}

TEST_CASE("local transport moves large messages", "[transport]") {
  REQUIRE_NOTHROW(run_ranks(2, {.timeout = Seconds{30}}, [](Transport& transport) {
    large_messages_arrive(transport, std::int64_t{64} << 20U);
  }));
}

TEST_CASE("local transport: synchronous sends wait for the receive", "[transport]") {
  REQUIRE_NOTHROW(run_ranks(2, {.timeout = Seconds{30}, .synchronous_sends = true}, synchronous_sends_block));
}

TEST_CASE("local transport: how long ranks wait depends on what they do", "[transport]") {
  const TransportOptions options{
      .timeout = Seconds{0.4}, .start_up_timeout = Seconds{30}, .save_timeout = Seconds{30}};
  CHECK_NOTHROW(run_ranks(2, options, phases_have_bounds));
}

TEST_CASE("a timeout may be for ever", "[transport]") {
  CHECK_NOTHROW(run_ranks(2, {.timeout = Seconds{1e300}}, [](Transport& transport) {
    if (transport.rank().value == 0) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    transport.barrier();
    const at::Tensor tensor = at::zeros({4});
    if (transport.rank().value == 1) return transport.wait(*transport.post_receive(Rank{0}, kTag, tensor));
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    transport.wait(*transport.start_send(Rank{1}, kTag, tensor));
  }));
}

TEST_CASE("a wait that nobody answers names rank, peer, tag and age", "[transport]") {
  const TransportOptions options{.timeout = Seconds{0.2}};
  const auto message_of = [&](const std::function<void(Transport&)>& body) {
    try {
      run_ranks(2, options, body);
    } catch (const PeerError& error) {
      return std::string(error.what());
    }
    return std::string("nothing was thrown");
  };
  const std::string receive = message_of([](Transport& transport) {
    if (transport.rank().value == 1) return;
    const at::Tensor into = at::zeros({4});
    transport.wait(*transport.post_receive(Rank{1}, kTag, into));
  });
  for (const char* part :
       {"rank 0: receive of activation 7", "from rank 1", "begun ", " s ago", "after 0.2 s"}) {
    CHECK(contains(receive, part));
  }
  const std::string send = message_of([](Transport& transport) {
    if (transport.rank().value == 1) return;
    transport.wait(*transport.start_send(Rank{1}, kTag, at::zeros({4})));
  });
  CHECK(contains(send, "rank 0: send of activation 7"));
  CHECK(contains(send, "to rank 1"));
  const std::string collective = message_of([](Transport& transport) {
    if (transport.rank().value == 0) transport.barrier();
  });
  CHECK(contains(collective, "rank 0: barrier"));
}

TEST_CASE("a rank that fails wakes all others with its reason", "[transport]") {
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::string> heard(5);
  CHECK_THROWS_WITH(run_ranks(5, {.timeout = Seconds{60}},
                              [&](Transport& transport) {
                                const int me = transport.rank().value;
                                if (me == 0) {
                                  std::this_thread::sleep_for(std::chrono::milliseconds(50));
                                  throw std::runtime_error("the disk is full");
                                }
                                try {
                                  if (me == 1) transport.barrier();
                                  while (me == 4) transport.progress();
                                  const at::Tensor tensor = at::zeros({4});
                                  if (me == 2) transport.wait(*transport.post_receive(Rank{0}, kTag, tensor));
                                  if (me == 3) transport.wait(*transport.start_send(Rank{0}, kTag, tensor));
                                } catch (const PeerError& error) {
                                  heard[me] = error.what();
                                  throw;
                                }
                              }),
                    "the disk is full");
  for (int rank = 1; rank < 5; ++rank) CHECK(contains(heard[rank], "rank 0 failed: the disk is full"));
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));
}

TEST_CASE("a rank that calls the others off meets them again elsewhere", "[transport]") {
  constexpr int kRanks = 3;
  auto ranks = make_local_transports(kRanks, {.timeout = Seconds{60}});
  std::atomic<int> met = 0;
  std::vector<std::thread> threads;
  for (int r = 0; r < kRanks; ++r) {
    threads.emplace_back([&, r] {
      Transport& transport = *ranks[static_cast<std::size_t>(r)];
      const std::unique_ptr<Transport> meeting = transport.meeting_place({.timeout = Seconds{60}});
      try {
        if (r == 1) transport.call_off("a label");
        transport.barrier();
      } catch (const MeetAgainError& error) {
        const std::string text = error.what();
        if (text.find("rank 1 failed: a label") == std::string::npos) return;
      }
      for (const auto& step : meeting->all_gather({7.0})) met += step.front() == 7 ? 1 : 0;
      if (r == 2) meeting->fail("no more");
      try {
        meeting->barrier();
      } catch (const MeetAgainError&) {
        met = -1000;
      } catch (const PeerError&) {
        ++met;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(met == kRanks * kRanks + kRanks);
}

TEST_CASE("programmer errors are found", "[transport]") {
  const TransportOptions options{.timeout = Seconds{5}};
  const auto post = [&](Rank from, const at::Tensor& tensor) {
    run_ranks(2, options, [&](Transport& transport) {
      if (transport.rank().value == 0) (void)transport.post_receive(from, kTag, tensor);
    });
  };
  CHECK_THROWS_AS(post(Rank{0}, at::zeros({4})), InternalError);  // itself
  CHECK_THROWS_AS(post(Rank{2}, at::zeros({4})), InternalError);
  CHECK_THROWS_AS(post(Rank{1}, at::zeros({4, 4}).t().slice(0, 0, 2)), InternalError);
  SECTION("sizes that differ") {
    CHECK_THROWS(run_ranks(2, options, [&](Transport& transport) {
      const at::Tensor tensor = at::zeros({transport.rank().value == 0 ? 4 : 5});
      transport.wait(*(transport.rank().value == 0 ? transport.post_receive(Rank{1}, kTag, tensor)
                                                   : transport.start_send(Rank{0}, kTag, tensor)));
    }));
  }
  SECTION("different collectives") {
    CHECK_THROWS(run_ranks(2, options, [&](Transport& transport) {
      if (transport.rank().value == 0) return transport.barrier();
      (void)transport.broadcast("");
    }));
  }
}

TEST_CASE("MPI tags are unique within their layout", "[transport]") {
  const transport::MpiTagLayout layout((1U << 31U) - 1);
  CHECK(layout.micro_batch_bits() == 12);
  std::set<int> codes;
  std::size_t count = 0;
  const auto add = [&](const Tag& tag) {
    const int code = layout.encode(tag);
    CHECK(code >= 0);
    codes.insert(code);
    ++count;
  };
  for (const int from : {0, 1, 126, 128, 16382, 16383}) {
    for (const int mb : {0, 1, 4095}) {
      for (const int index : {0, 7}) {
        add({Payload::gradient, StageId{from}, StageId{from}, mb, index});  // a sum of replicas
      }
      for (const int stages : {1, 2, 3, 7}) {
        add({Payload::activation, StageId{from}, StageId{from + stages}, mb});
        add({Payload::gradient, StageId{from}, StageId{from - stages}, mb});
      }
      add({Payload::loss, StageId{from}, StageId{0}, mb, 0});
    }
  }
  for (const int to : {8, 9, 126, 127}) {  // far away
    add({Payload::activation, StageId{0}, StageId{to}, 3});
    add({Payload::gradient, StageId{to}, StageId{0}, 3});
  }
  CHECK(codes.size() == count);
  CHECK_THROWS_WITH(layout.encode({Payload::activation, StageId{0}, StageId{128}, 3}),
                    Catch::Matchers::ContainsSubstring("\"relay\""));
  CHECK(layout.encode(kTag) == layout.encode({kTag.payload, kTag.from, kTag.to, 7 + 4096}));
  CHECK(layout.encode({Payload::loss, StageId{3}, StageId{0}, 1, 4095}) ==
        layout.encode({Payload::loss, StageId{3}, StageId{0}, 1, 0}));
  CHECK_THROWS_AS(layout.encode({kTag.payload, StageId{16384}, kTag.to, kTag.number}), InputError);

  CHECK(transport::MpiTagLayout((1 << 28) - 1).micro_batch_bits() == 9);
  CHECK(transport::MpiTagLayout((1 << 25) - 1).encode(kTag) < (1 << 25));
  CHECK_THROWS_AS(transport::MpiTagLayout(32767), InputError);
}
