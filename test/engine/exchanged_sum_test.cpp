#include "engine/core/exchanged_sum.h"

#include "base/error.h"
#include "models/tensors/counting_allocator.h"
#include "schedules/rules/reductions.h"
#include "test/support/catch.h"
#include "test/support/demand.h"
#include "test/support/ranks.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

using namespace stagecraft;
using namespace stagecraft::test;

namespace {

using Tensors = std::vector<at::Tensor>;

const Tag kTag{.payload = Payload::gradient, .from = StageId{1}, .to = StageId{1}, .number = 0};

/// Values whose sum depends on the order.
at::Tensor values(int replica, int number, std::int64_t count, at::ScalarType type) {
  at::Tensor places = at::arange(count, type).add_(replica * 31 + number * 7 + 1);
  return places.mul_(0.37 + replica).sin_().mul_(std::pow(40.0, replica));
}

struct Shape {
  std::int64_t count;
  at::ScalarType type = at::kFloat;
};

/// Fewer numbers than replicas, many that travel together, of two types, and more than one piece.
const std::vector<Shape> kMixed{
    {1},      {3},      {50'000}, {20'000}, {17, at::kDouble}, {40'001, at::kDouble}, {300'001}, {128},
    {65'536}, {65'537}, {0},      {2}};

Tensors mine(int replica, const std::vector<Shape>& shapes) {
  Tensors tensors;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    tensors.push_back(values(replica, static_cast<int>(i), shapes[i].count, shapes[i].type));
  }
  return tensors;
}

Bytes bytes_of(const Tensors& tensors) {
  Bytes bytes;
  for (const at::Tensor& tensor : tensors) bytes += Bytes{static_cast<std::int64_t>(tensor.nbytes())};
  return bytes;
}

/// Replica 0's, plus replica 1's, and so on.
Tensors expected(int replicas, const std::vector<Shape>& shapes) {
  Tensors sums = mine(0, shapes);
  for (int replica = 1; replica < replicas; ++replica) {
    const Tensors next = mine(replica, shapes);
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i].add_(next[i]);
  }
  return sums;
}

bool same(const Tensors& a, const Tensors& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const at::Tensor& x, const at::Tensor& y) { return at::equal(x, y); });
}

std::vector<Rank> ranks_of(int replicas) {
  std::vector<Rank> ranks;
  for (int r = replicas; r-- > 0;) ranks.emplace_back(r);  // replicas need not ascend by rank
  return ranks;
}

/// This rank's number among them.
int replica_of(const Transport& transport, int replicas) { return replicas - 1 - transport.rank().value; }

}  // namespace

TEST_CASE("tensors of any size are added in the replicas' order", "[replica_sum]") {
  const int replicas = GENERATE(2, 3, 4);
  const bool synchronous = GENERATE(false, true);
  const int slow = GENERATE(-1, 0, 1);  // a replica that comes late with every tensor
  CAPTURE(replicas, synchronous, slow);
  const Tensors sums = expected(replicas, kMixed);
  const TransportOptions options{.timeout = Seconds{30}, .synchronous_sends = synchronous};
  REQUIRE_NOTHROW(run_ranks(replicas, options, [&](Transport& transport) {
    const int replica = replica_of(transport, replicas);
    for (int group = 0; group < 2; ++group) {  // one sum after another, nobody waiting in between
      Tag tag = kTag;
      tag.number = group;
      const Tensors tensors = mine(replica, kMixed);
      ExchangedSum sum(transport, ranks_of(replicas), tag, reduce_staging(bytes_of(tensors), replicas),
                       at::kCPU);
      for (const at::Tensor& tensor : tensors) {
        if (replica == slow) std::this_thread::sleep_for(std::chrono::milliseconds(2));
        sum.add(tensor);
        sum.poll();
      }
      sum.finish();
      demand(same(tensors, sums), "another sum");
    }
  }));
}

TEST_CASE("several copies of a rank are added in their places, and all have the sum", "[replica_sum]") {
  // Ranks of the copies, in their order.
  const std::vector<int> of = GENERATE(std::vector{0, 1, 0}, std::vector{1, 0, 2, 1, 1}, std::vector{0, 0},
                                       std::vector{2, 1, 0, 0, 1, 2, 2});
  const bool synchronous = GENERATE(false, true);
  std::vector<Rank> copies;
  for (const int rank : of) copies.emplace_back(rank);
  const int ranks = *std::max_element(of.begin(), of.end()) + 1;
  constexpr std::int64_t kCount = 700'003;  // more than one piece
  at::Tensor sum = values(0, 0, kCount, at::kFloat);
  for (std::size_t copy = 1; copy < of.size(); ++copy)
    sum.add_(values(static_cast<int>(copy), 0, kCount, at::kFloat));
  const TransportOptions options{.timeout = Seconds{30}, .synchronous_sends = synchronous};
  REQUIRE_NOTHROW(run_ranks(ranks, options, [&](Transport& transport) {
    Tensors own;
    for (std::size_t copy = 0; copy < of.size(); ++copy) {
      if (of[copy] == transport.rank().value)
        own.push_back(values(static_cast<int>(copy), 0, kCount, at::kFloat));
    }
    const Bytes bytes{static_cast<std::int64_t>(own.front().nbytes())};
    ExchangedSum its(transport, copies, Tag::tied(TieId{1}, Group{0}),
                     tie_staging(bytes, copies, transport.rank()), at::kCPU);
    its.add(own);
    its.finish();
    for (const at::Tensor& tensor : own) demand(at::equal(tensor, sum), "another sum");
  }));
}

TEST_CASE("what is more than the staging memory goes through it piece by piece", "[replica_sum]") {
  install_counting_allocator();
  const std::vector<Shape> shapes{{9'000'000}, {5}, {70'000}, {4'000'000}, {1'000, at::kDouble}};
  const Tensors sums = expected(2, shapes);
  const Bytes all = bytes_of(sums);
  REQUIRE(reduce_staging(all, 2) == kReduceStaging);
  REQUIRE_NOTHROW(run_ranks(2, {.timeout = Seconds{30}}, [&](Transport& transport) {
    const Tensors tensors = mine(replica_of(transport, 2), shapes);
    MemoryAccount account;
    {
      const ChargeTo charge(account);
      ExchangedSum sum(transport, ranks_of(2), kTag, reduce_staging(all, 2), at::kCPU);
      for (const at::Tensor& tensor : tensors) sum.add(tensor);
      sum.finish();
    }
    demand(same(tensors, sums), "another sum");
    demand(account.peak() == kReduceStaging, "memory beside the staging");
    demand(account.live() == Bytes{0}, "memory is left");
  }));
}

TEST_CASE("a sum goes on while its rank waits for something else", "[replica_sum]") {
  const bool synchronous = GENERATE(false, true);
  const Tensors sums = expected(2, kMixed);
  const TransportOptions options{.timeout = Seconds{10}, .synchronous_sends = synchronous};
  const Tag other{.payload = Payload::activation, .from = StageId{0}, .to = StageId{1}, .number = 0};
  REQUIRE_NOTHROW(run_ranks(2, options, [&](Transport& transport) {
    const Tensors tensors = mine(replica_of(transport, 2), kMixed);
    ExchangedSum sum(transport, ranks_of(2), kTag, reduce_staging(bytes_of(tensors), 2), at::kCPU);
    for (const at::Tensor& tensor : tensors) sum.add(tensor);
    sum.flush();
    const at::Tensor message = at::zeros({3});
    if (transport.rank().value == 0) {
      transport.set_background([&] { sum.poll(); });
      transport.wait(*transport.post_receive(Rank{1}, other, message));
      transport.set_background(nullptr);
      sum.poll();
      demand(same(tensors, sums), "the sum waited too");
    } else {
      sum.finish();  // needs rank 0's part
      transport.wait(*transport.start_send(Rank{0}, other, message));
    }
    sum.finish();
    demand(same(tensors, sums), "another sum");
  }));
}

TEST_CASE("a replica that fails ends the others' sums with its reason, and nothing is left",
          "[replica_sum]") {
  const bool in_finish = GENERATE(false, true);
  std::vector<Tensors> tensors;
  for (int replica = 0; replica < 3; ++replica) tensors.push_back(mine(replica, kMixed));
  std::vector<std::string> heard(3);
  const auto begin = std::chrono::steady_clock::now();
  CHECK_THROWS_WITH(run_ranks(3, {.timeout = Seconds{60}},
                              [&](Transport& transport) {
                                const auto me = transport.rank().index();
                                try {
                                  ExchangedSum sum(transport, ranks_of(3), kTag,
                                                   reduce_staging(bytes_of(tensors[me]), 3), at::kCPU);
                                  for (std::size_t i = 0; i < kMixed.size(); ++i) {
                                    if (me == 0 && i == 7) throw std::runtime_error("the disk is full");
                                    sum.add(tensors[me][i]);
                                    sum.poll();
                                  }
                                  transport.set_background([&] { sum.poll(); });
                                  if (in_finish) sum.finish();
                                  while (true) transport.progress();
                                } catch (const PeerError& error) {
                                  heard[me] = error.what();
                                  throw;
                                }
                              }),
                    "the disk is full");
  for (const std::size_t rank : {1, 2}) {
    CHECK(heard[rank].find("rank 0 failed: the disk is full") != std::string::npos);
  }
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));
  for (const Tensors& own : tensors) {
    for (const at::Tensor& tensor : own) CHECK(tensor.storage().use_count() == 1);
  }
}

TEST_CASE("a sum without its other replicas says which one it waits for", "[replica_sum]") {
  std::string text;
  try {
    run_ranks(2, {.timeout = Seconds{0.2}}, [&](Transport& transport) {
      if (transport.rank().value == 1) return;
      const at::Tensor tensor = at::ones({8});
      ExchangedSum sum(transport, ranks_of(2), kTag, reduce_staging(Bytes{32}, 2), at::kCPU);
      sum.add(tensor);
      sum.finish();
    });
  } catch (const PeerError& error) {
    text = error.what();
  }
  INFO(text);
  CHECK(text.find("rank 0: ") == 0);
  CHECK(text.find("gradients of group 0 of stage 1") != std::string::npos);
  CHECK(text.find("rank 1") != std::string::npos);
}
