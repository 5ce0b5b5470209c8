// The c10d transport over a wire of this process. Over Gloo: test/scripts/c10d_test.py.

#include "engine/transport/c10d/c10d_session.h"
#include "engine/transport/c10d/message.h"
#include "test/engine/c10d_sessions.h"
#include "test/engine/over_hosts_cases.h"
#include "test/support/catch.h"
#include "test/support/demand.h"
#include "test/support/fake_wire.h"

#include <ATen/ATen.h>

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

using namespace stagecraft;
using namespace stagecraft::test;

namespace {

const Tag kTag{.payload = Payload::activation, .from = StageId{1}, .to = StageId{2}, .number = 7};

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

void run_sessions(FakeGroup& group, int world, const std::function<void(C10dSession&)>& body) {
  test::run_sessions(
      world, [&](Rank rank) { return group.wire(rank); }, body);
}

void run_c10d(int world, const TransportOptions& options, const std::function<void(Transport&)>& body) {
  FakeGroup group(world);
  run_transports(
      world, [&](Rank rank) { return group.wire(rank); }, options, body);
}

}  // namespace

TEST_CASE("c10d transport keeps the contract", "[c10d]") {
  const int world = GENERATE(1, 2, 3, 5);
  const bool synchronous = GENERATE(false, true);
  CAPTURE(world, synchronous);
  const TransportOptions options{
      .timeout = Seconds{30}, .synchronous_sends = synchronous, .text_piece = 1000};
  for (const auto& promise : {tags_match, equal_tags_keep_their_order, transfers_progress, collectives_agree,
                              agreements_come_late, texts_are_gathered, posted_sends_do_not_block}) {
    REQUIRE_NOTHROW(run_c10d(world, options, promise));
  }
  if (world > 1) REQUIRE_NOTHROW(run_c10d(world, options, background_work_goes_on));
  if (world > 1 && synchronous) REQUIRE_NOTHROW(run_c10d(world, options, synchronous_sends_block));
  REQUIRE_NOTHROW(run_c10d(world, options, [](Transport& transport) {
    large_messages_arrive(transport, std::int64_t{8} << 20U);
  }));
}

TEST_CASE("c10d: some ranks may have a transport to themselves, and the others wait", "[c10d]") {
  constexpr int kWorld = 5, kSome = 3;
  const TransportOptions options{.timeout = Seconds{30}, .text_piece = 1000};
  FakeGroup group(kWorld);
  run_sessions(group, kWorld, [&](C10dSession& session) {
    const auto everybody = session.make_transport(options);
    if (session.rank().value < kSome) {
      const auto some = session.make_transport(options, kSome);
      demand(some->world() == kSome, "it has the ranks that it is of");
      for (const auto& promise : {tags_match, collectives_agree, agreements_come_late, texts_are_gathered,
                                  posted_sends_do_not_block}) {
        promise(*some);
      }
    }
    const InPhase waiting(everybody->waits(), Phase::spare);
    everybody->barrier();
  });
}

TEST_CASE("c10d: phases have bounds, and a wait that nobody answers is named", "[c10d]") {
  CHECK_NOTHROW(
      run_c10d(2, {.timeout = Seconds{0.7}, .start_up_timeout = Seconds{30}, .save_timeout = Seconds{30}},
               phases_have_bounds));
  an_unanswered_transfer_is_named(run_c10d);
}

TEST_CASE("c10d: what is short travels within a message, and nothing before its receive", "[c10d]") {
  FakeGroup group(2);
  std::atomic<std::size_t> before = 0;
  run_sessions(group, 2, [&](C10dSession& session) {
    const auto transport = session.make_transport({.timeout = Seconds{30}});
    const at::Tensor tensor = at::full({1 << 20}, session.rank().value, at::kByte);
    if (session.rank() == Rank{0}) {
      const RequestPtr send = transport->post_send(Rank{1}, kTag, tensor);
      transport->barrier();
      demand(!transport->test(*send), "a send is over before its receive is posted");
      before = group.longest();
      transport->barrier();
      transport->wait(*send);
    } else {
      transport->barrier();
      transport->barrier();
      transport->wait(*transport->post_receive(Rank{0}, kTag, tensor));
      if (tensor.sum().item<std::int64_t>() != 0) throw std::runtime_error("wrong bytes");
    }
  });
  CHECK(before < 40'000);
  CHECK(group.longest() == 1 << 20);
}

TEST_CASE("c10d: tensors of every type and of no element", "[c10d]") {
  CHECK_NOTHROW(run_c10d(2, {.timeout = Seconds{30}}, [](Transport& transport) {
    int number = 0;
    for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kLong, at::kInt,
                                      at::kShort, at::kChar, at::kByte, at::kBool, at::kComplexFloat}) {
      for (const std::int64_t count : {0, 1, 33, 70'001}) {
        Tag tag = kTag;
        tag.number = number++;
        const at::Tensor sent = (at::arange(count) % 2).to(type);
        if (transport.rank() == Rank{0}) {
          transport.wait(*transport.start_send(Rank{1}, tag, sent));
          continue;
        }
        const at::Tensor received = at::zeros_like(sent);
        transport.wait(*transport.post_receive(Rank{0}, tag, received));
        demand(at::equal(received, sent), std::string("wrong bytes of ") + at::toString(type));
      }
    }
    const at::Tensor scalar = at::full({}, 3.0 + transport.rank().value);
    if (transport.rank() == Rank{0}) return transport.wait(*transport.start_send(Rank{1}, kTag, scalar));
    transport.wait(*transport.post_receive(Rank{0}, kTag, scalar));
    demand(scalar.item<double>() == 3, "wrong scalar");
  }));
}

TEST_CASE("c10d: lengths that differ are refused on both ranks before a byte travels", "[c10d]") {
  const std::int64_t sent = GENERATE(4, 100'000);
  const std::int64_t received = GENERATE(5, 100'001);
  const bool send_first = GENERATE(false, true);
  CAPTURE(sent, received, send_first);
  std::vector<std::string> heard(2);
  run_c10d(2, {.timeout = Seconds{30}}, [&](Transport& transport) {
    const int me = transport.rank().value;
    try {
      if ((me == 0) != send_first) transport.barrier();
      const at::Tensor tensor = at::zeros({me == 0 ? sent : received}, at::kByte);
      const RequestPtr request = me == 0 ? transport.post_send(Rank{1}, kTag, tensor)
                                         : transport.post_receive(Rank{0}, kTag, tensor);
      if ((me == 0) == send_first) transport.barrier();
      transport.wait(*request);
    } catch (const InternalError& error) {
      heard[static_cast<std::size_t>(me)] = error.what();
    }
  });
  CHECK(contains(heard[0], "rank 0: send of activation 7"));
  CHECK(contains(heard[0], fmt::format("has {} bytes, its receive {}", sent, received)));
  CHECK(contains(heard[1], fmt::format("has {} bytes, its send {}", received, sent)));
}

TEST_CASE("c10d: ranks that come to different collectives are told", "[c10d]") {
  std::vector<std::string> heard(3);
  run_c10d(3, {.timeout = Seconds{30}}, [&](Transport& transport) {
    const int me = transport.rank().value;
    try {
      if (me == 1) return (void)transport.broadcast("");
      transport.barrier();
    } catch (const InternalError& error) {
      heard[static_cast<std::size_t>(me)] = error.what();
    }
  });
  CHECK(contains(heard[0], "rank 1 came to a broadcast where rank 0 is in a barrier"));
  CHECK(contains(heard[2], "rank 1 came to a broadcast where rank 0 is in a barrier"));
}

TEST_CASE("c10d: a rank that fails wakes all others with its reason", "[c10d]") {
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::string> heard(5);
  CHECK_THROWS_WITH(
      run_c10d(5, {.timeout = Seconds{60}},
               [&](Transport& transport) {
                 const int me = transport.rank().value;
                 try {
                   transport.barrier();  // one may still be in it when rank 0 has left and failed
                   if (me == 0) throw std::runtime_error("the disk is full");
                   if (me == 1) transport.barrier();
                   while (me == 4) transport.progress();
                   const at::Tensor tensor = at::zeros({100'000});
                   if (me == 2) transport.wait(*transport.post_receive(Rank{0}, kTag, tensor));
                   if (me == 3) transport.wait(*transport.start_send(Rank{0}, kTag, tensor));
                 } catch (const PeerError& error) {
                   heard[static_cast<std::size_t>(me)] = error.what();
                   throw;
                 }
               }),
      "the disk is full");
  for (std::size_t rank = 1; rank < 5; ++rank) {
    INFO("rank " << rank << " heard: " << heard[rank]);
    CHECK(contains(heard[rank], "rank 0 failed: the disk is full"));
  }
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));
}

TEST_CASE("c10d: ranks that were called off meet again, whatever was under way", "[c10d]") {
  FakeGroup group(3);
  std::atomic<int> met = 0;
  run_sessions(group, 3, [&](C10dSession& session) {
    const int me = session.rank().value;
    const auto transport = session.make_transport({.timeout = Seconds{30}});
    const auto meeting = transport->meeting_place({.timeout = Seconds{30}});
    const at::Tensor tensor = at::zeros({100'000});
    try {
      if (me == 1) {
        transport->call_off("a label");
        // Too late: nobody waits for it any more.
        const RequestPtr late = transport->post_send(Rank{0}, kTag, tensor);
        throw MeetAgainError("rank 1 failed: a label");
      }
      transport->wait(*transport->post_receive(Rank{1}, Tag::loss(StageId{me}, Group{0}, 0), tensor));
    } catch (const MeetAgainError& error) {
      if (contains(error.what(), "rank 1 failed: a label")) ++met;
    }
    for (const auto& step : meeting->all_gather({7.0})) met += step.front() == 7 ? 1 : 0;
    large_messages_arrive(*meeting, 1 << 20);
    meeting->barrier();
  });
  CHECK(met == 3 + 3 * 3);
}

TEST_CASE("c10d: two groups of one process do not mix", "[c10d]") {
  FakeGroup first(2), second(2);
  std::vector<std::thread> runs;
  std::atomic<int> kept = 0;
  for (FakeGroup* group : {&first, &second}) {
    runs.emplace_back([&, group] {
      run_sessions(*group, 2, [](C10dSession& session) {
        const auto transport = session.make_transport({.timeout = Seconds{30}});
        for (int round = 0; round < 20; ++round) tags_match(*transport);
      });
      ++kept;
    });
  }
  for (std::thread& run : runs) run.join();
  CHECK(kept == 2);
}

TEST_CASE("c10d: a rank whose connections break is named, and so is one that left too early", "[c10d]") {
  // Both take seconds of waiting: at once.
  const auto heard_of_rank_1 = [](bool breaks, bool collective) {
    FakeGroup group(3);
    std::string heard;
    run_sessions(group, 3, [&](C10dSession& session) {
      const auto transport = session.make_transport({.timeout = Seconds{60}});
      transport->barrier();
      if (session.rank() == Rank{1} && breaks) {
        group.cut_off(Rank{1});
        session.mark_failed();  // it says no goodbye
      }
      if (session.rank() != Rank{0}) return;
      try {
        if (collective) return transport->barrier();
        transport->wait(*transport->post_receive(Rank{1}, kTag, at::zeros({100'000})));
      } catch (const PeerError& error) {
        heard = error.what();
      }
    });
    return heard;
  };
  std::vector<std::string> heard(3);
  std::vector<std::thread> threads;
  for (const std::size_t i : {0U, 1U, 2U}) {
    threads.emplace_back([&, i] { heard[i] = heard_of_rank_1(/*breaks=*/i == 0, /*collective=*/i == 2); });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(contains(heard[0], "rank 0: gave up receive of activation 7"));
  CHECK(contains(heard[0], "rank 1 failed: connection closed by peer"));
  CHECK(contains(heard[1], "rank 0: gave up receive of activation 7"));
  CHECK(contains(heard[1], "rank 1 failed: it has left the run"));
  CHECK(contains(heard[2], "rank 0: gave up barrier: rank 1 failed: it has left the run"));
}

TEST_CASE("c10d: who leaves early does not disturb those that need nobody else", "[c10d]") {
  FakeGroup group(3);
  run_sessions(group, 3, [&](C10dSession& session) {
    const auto transport = session.make_transport({.timeout = Seconds{30}});
    const at::Tensor tensor = at::full({100'000}, session.rank().value);
    if (session.rank() == Rank{0}) return;
    const Rank other{3 - session.rank().value};
    for (int round = 0; round < 5; ++round) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      const at::Tensor received = at::zeros_like(tensor);
      const RequestPtr receive = transport->post_receive(other, kTag, received);
      const RequestPtr send = transport->start_send(other, kTag, tensor);
      transport->wait(*receive);
      transport->wait(*send);
      demand(at::equal(received, at::full_like(tensor, other.value)), "wrong bytes");
    }
    while (!session.loss(Rank{0})) std::this_thread::yield();
    demand(session.loss({})->rank == Rank{0}, "what all do is in vain");
    demand(!session.loss(other), "a transfer with another rank is not in vain");
    const RequestPtr send = transport->post_send(other, kTag, tensor);  // and neither leaves before the other
    transport->wait(*transport->post_receive(other, kTag, at::zeros_like(tensor)));
    transport->wait(*send);
  });
}

TEST_CASE("c10d: messages keep what they say", "[c10d]") {
  transport::Message message;
  message.kind = transport::Message::Kind::ready;
  message.texts = true;
  message.transport = 3;
  message.number = 4'000'000'000U;
  message.bytes = std::int64_t{1} << 40U;
  message.tag = kTag;
  message.text = std::string("a\0b", 3);
  const transport::Message read = transport::message_from(to_bytes(message));
  CHECK(read.kind == message.kind);
  CHECK(read.texts);
  CHECK(read.transport == 3);
  CHECK(read.number == message.number);
  CHECK(read.bytes == message.bytes);
  CHECK(read.tag == kTag);
  CHECK(read.text == message.text);
  CHECK_THROWS_AS(transport::message_from("short"), InternalError);
}
