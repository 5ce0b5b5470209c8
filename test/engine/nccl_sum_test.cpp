// Sums over replicas by NCCL, on a device without a GPU (test/support/fake_device.h): which order they have,
// that whole runs equal the oracle to the bit where it is the replicas', that the host does nothing but
// launch, and how they end when something goes wrong.

#include "engine/transport/nccl/nccl_sum.h"

#include "engine/core/recorded_sum.h"
#include "engine/core/recorder.h"
#include "schedules/generators/registry.h"
#include "schedules/lowering/lowering.h"
#include "test/engine/nccl_ranks.h"
#include "test/support/catch.h"
#include "test/support/demand.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iostream>
#include <limits>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using namespace stagecraft;
using namespace stagecraft::test;
using transport::groups_of;
using transport::NcclGroup;
using transport::NcclWiring;

namespace {

const Tag kSumTag{.payload = Payload::gradient, .from = StageId{1}, .to = StageId{1}, .number = 0};

struct Shape {
  std::int64_t count;
  at::ScalarType type = at::kFloat;
};

/// Fewer numbers than replicas, many for one launch, of two types, and more than one piece of a chain.
const std::vector<Shape> kMixed{
    {1},   {3},      {50'000}, {20'000}, {17, at::kDouble}, {40'001, at::kDouble}, {300'001},
    {128}, {65'536}, {65'537}, {0},      {2'100'000}};

/// Of one replica: their sum depends on the order of additions.
Tensors values(int replica, const std::vector<Shape>& shapes) {
  Tensors tensors;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    at::Tensor places = at::arange(shapes[i].count, shapes[i].type);
    places.add_(replica * 31 + static_cast<int>(i) * 7 + 1);
    tensors.push_back(places.mul_(0.37 + replica).sin_().mul_(std::pow(40.0, replica)));
  }
  return tensors;
}

/// Replica 0's, plus replica 1's, and so on.
Tensors in_order(int replicas, const std::vector<Shape>& shapes) {
  Tensors sums = values(0, shapes);
  for (int replica = 1; replica < replicas; ++replica) {
    const Tensors next = values(replica, shapes);
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i].add_(next[i]);
  }
  return sums;
}

bool equal_bits(const Tensors& a, const Tensors& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const at::Tensor& x, const at::Tensor& y) { return at::equal(x, y); });
}

/// Replicas need not ascend by rank.
std::vector<Rank> replicas_of(int replicas) {
  std::vector<Rank> ranks;
  for (int r = replicas; r-- > 0;) ranks.emplace_back(r);
  return ranks;
}
int replica_of(const Transport& transport) { return transport.world() - 1 - transport.rank().value; }

/// Of a program whose one stage has so many replicas, as far as sums go.
NcclWiring wiring_of(int replicas, SumOrder order) {
  LoweredProgram program;
  program.placement.ranks = {{}, replicas_of(replicas)};
  return {.rules = TransportRules::nccl(),
          .channels = {},
          .groups = groups_of({&program}, order),
          .order = order};
}

/// Three sums one after another with nobody waiting in between; those of the last, by replica.
std::vector<Tensors> sums_of(int replicas, SumOrder order, int slow) {
  std::vector<Tensors> sums(static_cast<std::size_t>(replicas));
  NcclRanks().run(replicas, wiring_of(replicas, order), [&](Transport& nccl) {
    const int replica = replica_of(nccl);
    for (int group = 0; group < 3; ++group) {
      Tag tag = kSumTag;
      tag.number = group;
      const Tensors tensors = values(replica, kMixed);
      const std::unique_ptr<ReplicaSum> sum = nccl.make_sum(replicas_of(replicas), tag);
      for (const at::Tensor& tensor : tensors) {
        if (replica == slow) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        sum->add(tensor);
      }
      sum->finish();
      sums[static_cast<std::size_t>(replica)] = tensors;
    }
  });
  return sums;
}

/// Whole runs of a schedule over stages of such widths.
PipelineCase replicated(const std::string& schedule, const std::vector<int>& widths) {
  const Schedule& known = find_schedule(schedule);
  PipelineCase pipeline{.schedule = schedule,
                        .stages = static_cast<int>(widths.size()) * known.virtual_stages,
                        .placement = known.placement,
                        .widths = widths,
                        .shape = BatchShape::many};
  return pipeline;
}

}  // namespace

TEST_CASE("what NCCL sums in order has the bits of a loop over the replicas", "[nccl_sum]") {
  const int replicas = GENERATE(2, 3, 4, 5);
  const int slow = GENERATE(-1, 0, 1);  // a replica that comes late with every tensor
  CAPTURE(replicas, slow);
  const Tensors expected = in_order(replicas, kMixed);
  for (const Tensors& sum : sums_of(replicas, SumOrder::ordered, slow)) CHECK(equal_bits(sum, expected));
}

TEST_CASE("NCCL's own order is that of two replicas, and of more within the bound", "[nccl_sum]") {
  CHECK(equal_bits(sums_of(2, SumOrder::nccl, -1).front(), in_order(2, kMixed)));
  for (const int replicas : {3, 4}) {
    CAPTURE(replicas);
    const std::vector<Tensors> sums = sums_of(replicas, SumOrder::nccl, -1);
    const Tensors expected = in_order(replicas, kMixed);
    CHECK_FALSE(equal_bits(sums.front(), expected));  // or the bound would show nothing
    for (const Tensors& sum : sums) CHECK(equal_bits(sum, sums.front()));
    for (std::size_t i = 0; i < kMixed.size(); ++i) {
      at::Tensor magnitudes = at::zeros_like(expected[i], at::kDouble);
      for (int replica = 0; replica < replicas; ++replica) magnitudes.add_(values(replica, kMixed)[i].abs());
      const double unit = (kMixed[i].type == at::kDouble ? std::numeric_limits<double>::epsilon()
                                                         : std::numeric_limits<float>::epsilon()) /
                          2;
      // Each of the two is so far from the exact sum; a little more for terms of higher order.
      const at::Tensor bound = magnitudes.mul_(2.001 * (replicas - 1) * unit);
      const at::Tensor error = sums.front()[i].to(at::kDouble).sub(expected[i].to(at::kDouble)).abs();
      CHECK(at::le(error, bound).all().item<bool>());
    }
  }
}

TEST_CASE("runs whose replicas sum by NCCL equal the oracle to the bit", "[nccl_sum]") {
  int runs = 0;
  for (const std::vector<int>& widths : {std::vector{2, 1}, {1, 2}, {2, 2}, {3}, {3, 1}, {1, 3}, {2, 1, 2}}) {
    for (const char* schedule :
         {"fill_drain", "1f1b", "zb_h1", "interleaved_1f1b", "zb_v", "pipedream", "2bw"}) {
      for (const ModelKind model : {ModelKind::mlp, ModelKind::convnet}) {  // the latter has batch norms
        PipelineCase pipeline = replicated(schedule, widths);
        pipeline.model = model;
        if (pipeline.stages > 6 || !served(pipeline)) continue;
        for (const BatchShape shape : {BatchShape::many, BatchShape::few}) {  // few: replicas without any
          pipeline.shape = shape;
          if (!served(pipeline)) continue;
          const Setting setting(pipeline);
          INFO(pipeline.name());
          CHECK(difference(run_over_nccl(setting, nccl_needs(setting)), oracle_of(setting)) == "");
          ++runs;
        }
      }
    }
  }
  std::cout << fmt::format("{} runs whose replicas sum by NCCL compared with the oracle\n", runs);
  CHECK(runs > 60);
}

TEST_CASE(
    "in NCCL's own order two replicas still equal the oracle, and three have its first gradients nearly",
    "[nccl_sum]") {
  const Setting two(replicated("1f1b", {2, 1}));
  CHECK(difference(run_over_nccl(two, nccl_needs(two, SumOrder::nccl)), oracle_of(two)) == "");

  const Setting three(replicated("1f1b", {3, 1}));
  const std::vector<Outcome> outcomes = run_over_nccl(three, nccl_needs(three, SumOrder::nccl));
  CHECK(difference(outcomes, oracle_of(three)) != "");
  for (const Outcome& outcome : outcomes) {
    for (const auto& [place, gradients] : outcome.gradients) {
      if (place.first > 0) continue;  // of other weights
      const Tensors& wanted = oracle_of(three).steps.front().gradients.at(place.second);
      for (std::size_t i = 0; i < wanted.size(); ++i) {
        CHECK(at::allclose(gradients[i], wanted[i], /*rtol=*/1e-5, /*atol=*/1e-6));
      }
    }
  }
}

TEST_CASE("the host launches whole sums before anything of them has happened", "[nccl_sum]") {
  const int replicas = GENERATE(2, 3);
  const NcclRanks ranks;
  const Tensors expected = in_order(replicas, kMixed);
  REQUIRE_NOTHROW(ranks.run(replicas, wiring_of(replicas, SumOrder::ordered), [&](Transport& nccl) {
    const Tensors tensors = values(replica_of(nccl), kMixed);
    const Tensors before = values(replica_of(nccl), kMixed);
    const std::unique_ptr<ReplicaSum> sum = nccl.make_sum(replicas_of(replicas), kSumTag);
    for (int late = 0; late < replicas; ++late) {  // one rank after the other
      if (nccl.rank().value == late) {
        for (const at::Tensor& tensor : tensors) sum->add(tensor);
        sum->flush();
        sum->poll();
      }
      nccl.barrier();
    }
    demand(ranks.fabric->collectives() == 0 && equal_bits(tensors, before), "something was done already");
    nccl.barrier();
    sum->finish();
    demand(equal_bits(tensors, expected), "another sum");
  }));
  CHECK(ranks.fabric->failure() == "");
}

TEST_CASE("timelines tell when NCCL moved sums, and of how many bytes", "[nccl_sum]") {
  const auto sums_by_rank = [](const std::vector<Outcome>& outcomes) {
    std::map<std::pair<int, std::int64_t>, std::int64_t> bytes;  // of a rank in a step
    for (const Outcome& outcome : outcomes) {
      Seconds moved_until{-1e9};
      for (const Event& event : outcome.events) {
        if (event.lane != Event::Lane::send) continue;
        CHECK(moved_until < event.begin);  // what overlaps is told as one
        CHECK(event.begin <= event.end);
        moved_until = event.end;
        bytes[{event.rank.value, event.step}] += event.bytes.value;
      }
    }
    return bytes;
  };
  const std::vector<int> widths = GENERATE(std::vector{2}, std::vector{3, 1});  // an all-reduce, and a chain
  const Setting setting(replicated("1f1b", widths));
  const auto by_nccl = sums_by_rank(run_over_nccl(setting, nccl_needs(setting)));
  CHECK(by_nccl.size() == static_cast<std::size_t>(3 * widths.front()));  // steps, which are kept
  std::vector<Outcome> locally(static_cast<std::size_t>(setting.placement.world()));
  run_ranks(setting.placement.world(), {.timeout = Seconds{60}},
            [&](Transport& transport) { locally[transport.rank().index()] = run_rank(setting, transport); });
  CHECK(by_nccl == sums_by_rank(locally));
}

TEST_CASE("a sum's times begin where it leaves, beside what is computed", "[nccl_sum]") {
  const NcclRanks ranks;
  REQUIRE_NOTHROW(ranks.run(2, wiring_of(2, SumOrder::ordered), [&](Transport& nccl) {
    Recorder recorder(nccl.rank(), 1, at::kCPU);
    RecordedSum sum(nccl.make_sum(replicas_of(2), kSumTag), recorder, {.op = Op::reduce}, 0);
    const at::Tensor large = at::ones({1 << 20}), small = at::ones({8});
    sum.add(large);
    nccl.barrier();
    for (int turn = 0; turn < 200; ++turn) {  // both know that both have joined, and the first piece leaves
      sum.poll();
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    Recorder::Mark begin = recorder.mark();
    const Seconds joins = begin.time;
    sum.add(small);
    sum.finish();
    recorder.record({.op = Op::reduce}, 0, std::move(begin), recorder.mark());
    const std::vector<Event>& events = recorder.events();
    demand(events.size() >= 2 && events.front().lane == Event::Lane::send && events.front().begin < joins,
           "a sum is told later than it was under way");
    Bytes bytes;
    for (const Event& event : events) {
      demand(event.begin <= event.end && event.end <= recorder.mark().time, "a sum ends behind its end");
      bytes += event.bytes;
    }
    demand(bytes == Bytes{(1 << 22) + 32}, "of other bytes");
  }));
}

TEST_CASE("several copies of a rank are added in their places, and all have the sum", "[nccl_sum]") {
  // Ranks of the copies, in their order; those of one rank stand apart or behind each other, at an end or not.
  const std::vector<int> of =
      GENERATE(std::vector{0, 1, 0}, std::vector{1, 1, 0}, std::vector{1, 0, 0}, std::vector{0, 1, 1, 0, 1},
               std::vector{2, 1, 0, 0, 1, 2, 2}, std::vector{0, 1, 2});
  CAPTURE(of);
  const std::vector<Shape> shapes{{5}, {1'200'003}};  // one piece, and several
  const auto count = static_cast<int>(of.size());
  LoweredProgram program;  // a stage for each layer that holds the weight
  program.ties.emplace_back();
  std::vector<Rank> copies;
  for (int copy = 0; copy < count; ++copy) {
    program.placement.ranks.push_back({Rank{of[static_cast<std::size_t>(count - 1 - copy)]}});
    program.ties.front().emplace_back(copy);
    copies.emplace_back(of[static_cast<std::size_t>(copy)]);
  }
  const NcclWiring wiring{.rules = TransportRules::nccl(),
                          .channels = {},
                          .groups = groups_of({&program}, SumOrder::ordered),
                          .order = SumOrder::ordered};
  const Tensors expected = in_order(count, shapes);
  REQUIRE_NOTHROW(NcclRanks().run(*std::max_element(of.begin(), of.end()) + 1, wiring, [&](Transport& nccl) {
    for (int group = 0; group < 3; ++group) {
      std::vector<Tensors> own;
      for (int copy = 0; copy < count; ++copy) {
        if (copies[static_cast<std::size_t>(copy)] == nccl.rank()) own.push_back(values(copy, shapes));
      }
      for (std::size_t i = 0; i < shapes.size(); ++i) {
        Tensors tensors;
        for (const Tensors& copy : own) tensors.push_back(copy[i]);
        const auto sum = nccl.make_sum(copies, Tag::tied(TieId{0}, Group{group}));
        sum->add(tensors);
        sum->finish();
      }
      for (const Tensors& copy : own) demand(equal_bits(copy, expected), "another sum");
    }
  }));
}

TEST_CASE("a stage's replicas share a communicator, three and more in order their neighbours too",
          "[nccl_sum]") {
  LoweredProgram program;
  program.placement.ranks = {{Rank{0}, Rank{1}}, {Rank{2}}, {Rank{5}, Rank{3}, Rank{4}}};
  const Tag of_0 = Tag::reduction(StageId{0}, Group{0});
  const Tag of_2 = Tag::reduction(StageId{2}, Group{0});
  const NcclGroup two{of_0, NcclGroup::kAll, {Rank{0}, Rank{1}}};
  const NcclGroup three{of_2, NcclGroup::kAll, {Rank{5}, Rank{3}, Rank{4}}};
  const NcclGroup first{of_2, 0, {Rank{5}, Rank{3}}};
  const NcclGroup last{of_2, 1, {Rank{3}, Rank{4}}};
  CHECK((groups_of({&program}, SumOrder::nccl) == std::vector{two, three}));
  CHECK((groups_of({&program, &program}, SumOrder::ordered) == std::vector{two, three, first, last}));
  program.kind = SegmentKind::validate;
  CHECK(groups_of({&program}, SumOrder::ordered).empty());
  // Of all ranks where devices clip by a norm that the program agrees on.
  const Setting clipped(PipelineCase{.schedule = "1f1b", .stages = 3, .clipping = 0.05});
  const std::vector<NcclGroup> norms = groups_of(programs_of(clipped), SumOrder::ordered, /*norms=*/true);
  CHECK(
      (norms == std::vector{NcclGroup{Tag::norms(Group{0}), NcclGroup::kAll, {Rank{0}, Rank{1}, Rank{2}}}}));
  const Setting asynchronous(PipelineCase{.schedule = "pipedream", .stages = 3});
  CHECK(groups_of(programs_of(asynchronous), SumOrder::ordered, /*norms=*/true).empty());
}

TEST_CASE("a tied weight has communicators of its own, unless one rank holds all of it", "[nccl_sum]") {
  LoweredProgram program;
  program.placement.ranks = {{Rank{0}}, {Rank{1}}, {Rank{0}}};
  program.ties = {{StageId{0}, StageId{1}}, {StageId{0}, StageId{0}}, {StageId{0}, StageId{1}, StageId{2}}};
  const Tag two = Tag::tied(TieId{0}, Group{0});
  const Tag three = Tag::tied(TieId{2}, Group{0});
  const NcclGroup pair{two, NcclGroup::kAll, {Rank{1}, Rank{0}}};
  const NcclGroup all{three, NcclGroup::kAll, {Rank{0}, Rank{1}}};
  const NcclGroup there{three, 0, {Rank{0}, Rank{1}}};
  const NcclGroup back{three, 1, {Rank{1}, Rank{0}}};
  // NCCL's own order needs no copy of a rank added in its place.
  for (const SumOrder order : {SumOrder::ordered, SumOrder::nccl})
    CHECK((groups_of({&program}, order) == std::vector{pair, all, there, back}));
}

TEST_CASE("sums take queues of the device too", "[nccl_sum]") {
  NcclRanks ranks;
  ranks.most_streams = 2;  // the replica in the middle has three communicators
  CHECK_THROWS_AS(ranks.run(3, wiring_of(3, SumOrder::ordered), [](Transport&) {}), InputError);
  CHECK_NOTHROW(ranks.run(3, wiring_of(3, SumOrder::nccl), [](Transport&) {}));
}

TEST_CASE("a collective without an event of what was computed before is found, and so is a wrong order",
          "[nccl_sum]") {
  const auto fabric = std::make_shared<FakeFabric>();
  FakeDevice device(fabric, 1);
  device.open({}, {{.group = 0, .members = 1, .number = 0, .id = "one"}}, Seconds{1});
  const FakeDevice::Stream stream = device.make_stream();
  const FakeDevice::Stream other = device.make_stream();
  const FakeDevice::Event event = device.take_event();
  float number = 2;
  const auto all_reduce = [&](FakeDevice::Stream on) { device.all_reduce(0, on, {{&number, 1}}); };
  CHECK_THROWS_AS(all_reduce(stream), InternalError);
  device.record(event, FakeDevice::Stream::compute);
  CHECK_THROWS_AS(all_reduce(stream), InternalError);  // nobody waits for it
  device.wait(stream, event);
  CHECK_NOTHROW(all_reduce(stream));
  CHECK_THROWS_AS(all_reduce(stream), InternalError);  // of something that was computed since
  device.record(event, stream);
  device.wait(other, event);
  CHECK_THROWS_AS(all_reduce(other), InternalError);  // two streams for one group
  device.wait(FakeDevice::Stream::compute, event);
  CHECK(fabric->collectives() == 1);

  // Replicas that launch different things.
  const NcclRanks ranks;
  const auto unlike = [](Transport& nccl) {
    const at::Tensor tensor = at::ones({nccl.rank().value == 0 ? 3 : 4});
    const auto sum = nccl.make_sum(replicas_of(2), kSumTag);
    sum->add(tensor);
    sum->finish();
  };
  CHECK_THROWS_AS(ranks.run(2, wiring_of(2, SumOrder::ordered), unlike), PeerError);
  CHECK(ranks.fabric->failure() == "the members of a group launch different things");
}

TEST_CASE("a sum whose other replicas do not come, or launch nothing, ends with its name", "[nccl_sum]") {
  const int replicas = GENERATE(2, 3);
  NcclRanks ranks;
  ranks.options.timeout = Seconds{0.3};
  ranks.prepare = [](Rank, FakeDevice& device) { device.let_compute_lag(); };
  const bool join = GENERATE(false, true);
  const bool reported = join && GENERATE(false, true);  // by NCCL, or by the clock
  std::string heard;
  CHECK_THROWS_AS(ranks.run(replicas, wiring_of(replicas, SumOrder::ordered),
                            [&](Transport& nccl) {
                              if (nccl.rank().value > 0) {
                                const auto joined =
                                    join ? nccl.make_sum(replicas_of(replicas), kSumTag) : nullptr;
                                while (true) nccl.progress();  // until it hears of rank 0
                              }
                              const at::Tensor tensor = at::ones({8});
                              const auto sum = nccl.make_sum(replicas_of(replicas), kSumTag);
                              sum->add(tensor);
                              try {
                                sum->finish();
                                if (reported) ranks.fabric->fail("unhandled system error");
                                while (true) nccl.progress();
                              } catch (const PeerError& error) {
                                heard = error.what();
                                throw;
                              }
                            }),
                  PeerError);
  INFO(heard);
  for (const char* part : {"rank 0: ", "sum over replicas of gradients of group 0 of stage 1"}) {
    CHECK(heard.find(part) != std::string::npos);
  }
  CHECK((heard.find(reported ? "NCCL says: unhandled system error" : "after 0.3 s") != std::string::npos));
}

TEST_CASE("a rank that fails ends the sums that others wait for", "[nccl_sum]") {
  const int replicas = GENERATE(2, 3);
  CHECK_THROWS_WITH(NcclRanks().run(replicas, wiring_of(replicas, SumOrder::ordered),
                                    [&](Transport& nccl) {
                                      if (nccl.rank().value == 0)
                                        throw std::runtime_error("the disk is full");
                                      const at::Tensor tensor = at::ones({8});
                                      const auto sum = nccl.make_sum(replicas_of(replicas), kSumTag);
                                      sum->add(tensor);
                                      sum->finish();
                                    }),
                    "the disk is full");
}
