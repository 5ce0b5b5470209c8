#include "test/engine/transport_contract.h"

#include "test/support/demand.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <chrono>
#include <stdexcept>
#include <thread>

namespace stagecraft::test {
namespace {

Tag tag(int micro_batch, Payload payload = Payload::activation) {
  return {.payload = payload, .from = StageId{0}, .to = StageId{1}, .number = micro_batch};
}

/// What `from` sends to `to` under micro-batch `mb`.
at::Tensor message(int from, int to, int mb) {
  return at::arange(1000, at::kFloat) + static_cast<float>(from * 10000 + to * 1000000 + mb * 7);
}

}  // namespace

void tags_match(Transport& transport) {
  const int me = transport.rank().value;
  constexpr int kMicroBatches = 5;
  struct Incoming {
    int from, mb;
    at::Tensor into;
    RequestPtr request;
  };
  std::vector<Incoming> incoming;
  for (int mb = kMicroBatches - 1; mb >= 0; --mb) {  // not the order they are sent in
    for (int peer = 0; peer < transport.world(); ++peer) {
      if (peer == me) continue;
      Incoming next{peer, mb, at::zeros({1000}), nullptr};
      next.request = transport.post_receive(Rank{peer}, tag(mb), next.into);
      incoming.push_back(std::move(next));
    }
  }
  transport.barrier();
  std::vector<std::pair<at::Tensor, RequestPtr>> outgoing;
  for (int mb = 0; mb < kMicroBatches; ++mb) {
    for (int peer = 0; peer < transport.world(); ++peer) {
      if (peer == me) continue;
      const at::Tensor tensor = message(me, peer, mb);
      outgoing.emplace_back(tensor, transport.start_send(Rank{peer}, tag(mb), tensor));
    }
  }
  for (auto& [tensor, request] : outgoing) {
    transport.wait(*request);
    tensor.fill_(-1);
  }
  for (auto& [from, mb, into, request] : incoming) {
    transport.wait(*request);
    demand(at::equal(into, message(from, me, mb)),
           fmt::format("rank {}: wrong message {} from rank {}", me, mb, from));
  }
}

void equal_tags_keep_their_order(Transport& transport) {
  const int me = transport.rank().value;
  const int next = (me + 1) % transport.world();
  const int previous = (me + transport.world() - 1) % transport.world();
  if (next == me) return;
  constexpr int kMessages = 4;
  std::vector<at::Tensor> received;
  std::vector<RequestPtr> receives, sends;
  std::vector<at::Tensor> sent;
  for (int k = 0; k < kMessages; ++k) {
    received.push_back(at::zeros({1000}));
    receives.push_back(transport.post_receive(Rank{previous}, tag(3), received.back()));
  }
  for (int k = 0; k < kMessages; ++k) {
    sent.push_back(message(me, next, k));
    sends.push_back(transport.start_send(Rank{next}, tag(3), sent.back()));
  }
  for (auto& request : sends) transport.wait(*request);
  for (int k = 0; k < kMessages; ++k) {
    transport.wait(*receives[k]);
    demand(at::equal(received[k], message(previous, me, k)), fmt::format("message {} out of order", k));
  }
}

void large_messages_arrive(Transport& transport, std::int64_t bytes) {
  const int me = transport.rank().value;
  const int peer = me ^ 1;
  if (peer >= transport.world()) return;
  const at::Tensor pattern = at::arange(bytes / 8, at::kLong);
  const at::Tensor sent = pattern + me;
  const at::Tensor received = at::zeros_like(pattern);
  const RequestPtr receive = transport.post_receive(Rank{peer}, tag(0, Payload::gradient), received);
  const RequestPtr send = transport.start_send(Rank{peer}, tag(0, Payload::gradient), sent);
  transport.wait(*receive);
  transport.wait(*send);
  demand(at::equal(received, pattern + peer), "a large message was damaged");
}

void transfers_progress(Transport& transport) {
  const int me = transport.rank().value;
  const int peer = me ^ 1;
  if (peer >= transport.world()) return;
  const at::Tensor sent = message(me, peer, 1);
  const at::Tensor received = at::zeros({1000});
  const RequestPtr receive = transport.post_receive(Rank{peer}, tag(1), received);
  const RequestPtr send = transport.start_send(Rank{peer}, tag(1), sent);
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  bool sent_done = false;
  bool received_done = false;
  while (!(sent_done && received_done)) {
    transport.progress();
    sent_done = sent_done || transport.test(*send);
    received_done = received_done || transport.test(*receive);
    demand(std::chrono::steady_clock::now() < until, "a transfer made no progress");
  }
  demand(at::equal(received, message(peer, me, 1)), "wrong message");
}

void collectives_agree(Transport& transport) {
  const int me = transport.rank().value;
  for (int round = 0; round < 3; ++round) {
    // Short ones and, in the last round, some of hundreds of bytes beside them.
    const auto count = [&](int rank) { return static_cast<std::size_t>(round == 2 ? 63 * rank : rank); };
    const auto numbers = transport.all_gather(std::vector<double>(count(me), me + 0.5));
    const auto texts = transport.all_gather_text(fmt::format("rank {} round {}", me, round));
    demand(numbers.size() == static_cast<std::size_t>(transport.world()) && texts.size() == numbers.size(),
           "a collective has one part per rank");
    for (int r = 0; r < transport.world(); ++r) {
      demand(numbers[r] == std::vector<double>(count(r), r + 0.5), "all_gather");
      demand(texts[r] == fmt::format("rank {} round {}", r, round), "all_gather_text");
    }
    const std::string text = std::string(100'000, 'x') + std::to_string(round);
    demand(transport.broadcast(me == 0 ? text : "mine") == text, "broadcast");
    demand(transport.broadcast("").empty() || me > 0, "an empty broadcast");
    transport.barrier();
  }
}

void agreements_come_late(Transport& transport) {
  constexpr int kQuestions = 50, kLate = 4;
  const int me = transport.rank().value, world = transport.world();
  // In question q rank q % world brings q, the others less. Answers are heard kLate questions later, and whoever
  // is ahead waits for the others no sooner.
  for (int q = 0; q < kQuestions + kLate; ++q) {
    if (q < kQuestions) transport.begin_agreement(q % world == me ? q : q / 2);
    if (q % 7 == me) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (q < kLate) continue;
    const int answer = transport.finish_agreement();
    demand(answer == q - kLate,
           fmt::format("rank {}: the answer to question {} is {}", me, q - kLate, answer));
  }
  transport.barrier();
}

void texts_are_gathered(Transport& transport) {
  const int me = transport.rank().value;
  const auto text_of = [](int rank) {
    std::string text;
    for (int i = 0; i < 2500 * rank; ++i) text += static_cast<char>('a' + (i + rank) % 26);
    return text;
  };
  for (int to = 0; to < transport.world(); ++to) {
    int next = 0;
    transport.gather_text(Rank{to}, text_of(me), [&](Rank from, const std::string& text) {
      demand(me == to && from.value == next++, "texts come to one rank, in rank order");
      demand(text == text_of(from.value), fmt::format("the text of rank {}", from.value));
    });
    demand(next == (me == to ? transport.world() : 0), "every rank's text comes");
  }
}

void phases_have_bounds(Transport& transport) {
  const auto work = [&] {
    if (transport.rank().value == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  };
  Waits& waits = transport.waits();
  for (const Phase phase : {Phase::start_up, Phase::save}) {
    const InPhase here(waits, phase);
    work();
    (void)transport.broadcast("");
    transport.barrier();
  }
  demand(waits.phase() == Phase::step, "a phase ends where it began");
  waits.expect_step(Seconds{60.0 / Waits::kSteps});
  work();
  transport.barrier();
}

void synchronous_sends_block(Transport& transport) {
  using Clock = std::chrono::steady_clock;
  constexpr auto kDelay = std::chrono::milliseconds(150);
  const at::Tensor tensor = at::ones({8});
  transport.barrier();
  if (transport.rank().value == 0) {
    const auto begin = Clock::now();
    const RequestPtr send = transport.start_send(Rank{1}, tag(0), tensor);
    demand(Clock::now() - begin >= kDelay - std::chrono::milliseconds(20), "start_send did not block");
    transport.wait(*send);
  } else if (transport.rank().value == 1) {
    std::this_thread::sleep_for(kDelay);
    const RequestPtr receive = transport.post_receive(Rank{0}, tag(0), tensor);
    transport.wait(*receive);
  }
}

void posted_sends_do_not_block(Transport& transport) {
  const int me = transport.rank().value;
  const int peer = me ^ 1;
  if (peer < transport.world()) {
    const at::Tensor sent = message(me, peer, 2);
    const at::Tensor received = at::zeros({1000});
    const RequestPtr send = transport.post_send(Rank{peer}, tag(2), sent);
    const RequestPtr receive = transport.post_receive(Rank{peer}, tag(2), received);
    transport.wait(*receive);
    transport.wait(*send);
    demand(at::equal(received, message(peer, me, 2)), "wrong message");
  }
}

void background_work_goes_on(Transport& transport) {
  const int me = transport.rank().value;
  const at::Tensor first = at::zeros({1000});
  const at::Tensor answer = at::zeros({1000});
  const at::Tensor last = at::zeros({1000});
  if (me == 0) {
    const RequestPtr receive = transport.post_receive(Rank{1}, tag(0), first);
    const at::Tensor answered = message(0, 1, 1);
    RequestPtr sent;
    transport.set_background([&] {
      if (!sent && transport.test(*receive)) sent = transport.post_send(Rank{1}, tag(1), answered);
    });
    transport.wait(*transport.post_receive(Rank{1}, tag(2), last));
    transport.set_background(nullptr);
    transport.wait(*sent);
    demand(at::equal(first, message(1, 0, 0)) && at::equal(last, message(1, 0, 2)), "wrong message");
  } else if (me == 1) {
    transport.wait(*transport.start_send(Rank{0}, tag(0), message(1, 0, 0)));
    transport.wait(*transport.post_receive(Rank{0}, tag(1), answer));
    transport.wait(*transport.start_send(Rank{0}, tag(2), message(1, 0, 2)));
    demand(at::equal(answer, message(0, 1, 1)), "wrong message");
  }
}

}  // namespace stagecraft::test
