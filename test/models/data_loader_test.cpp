#include "base/error.h"
#include "models/data/loader.h"
#include "test/support/catch.h"

#include <ATen/ATen.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace stagecraft {
namespace {

using namespace std::chrono_literals;

/// Sample i is the number i. Slow and failing on request; counts what was read.
class Numbers final : public Dataset {
 public:
  std::chrono::microseconds delay{0};
  std::int64_t broken_sample = -1;
  mutable std::atomic<int> reads{0};

  [[nodiscard]] std::int64_t size(Split) const override { return 100; }
  [[nodiscard]] SampleSpec sample() const override { return {{}, at::kLong, 0}; }
  [[nodiscard]] at::Tensor inputs(Split, const std::vector<std::int64_t>& indices) const override {
    ++reads;
    std::this_thread::sleep_for(delay);
    for (const std::int64_t index : indices)
      if (index == broken_sample) throw InputError("sample is broken");
    return at::tensor(indices, at::kLong);
  }
  [[nodiscard]] at::Tensor targets(Split, const std::vector<std::int64_t>& indices) const override {
    return -at::tensor(indices, at::kLong);
  }
  [[nodiscard]] std::string fingerprint() const override { return ""; }
  [[nodiscard]] std::string summary() const override { return ""; }
};

/// Micro-batches of four samples, the last one of three, across an epoch's end.
std::vector<MicroBatchRange> some_ranges(int count) {
  std::vector<MicroBatchRange> ranges;
  for (int i = 0; i < count; ++i) ranges.push_back({i / 25, 4 * (i % 25), i + 1 == count ? 3 : 4});
  return ranges;
}

at::Tensor expected(const MicroBatchRange& range, std::uint64_t seed) {
  const Shuffle shuffle(100, seed, range.epoch, true);
  std::vector<std::int64_t> indices;
  for (std::int64_t i = 0; i < range.count; ++i) indices.push_back(shuffle(range.first + i));
  return at::tensor(indices, at::kLong);
}

LoaderOptions options(int depth = 2) {
  LoaderOptions result;
  result.seed = 7;
  result.depth = depth;
  return result;
}

template <class Condition>
void wait_until(const Condition& holds) {
  for (int i = 0; i < 5000 && !holds(); ++i) std::this_thread::sleep_for(1ms);
  REQUIRE(holds());
}

TEST_CASE("loader: batches in order, with the epoch's shuffle and a short last one", "[data]") {
  const Numbers data;
  const int depth = GENERATE(1, 2, 5, 100);
  Loader loader(data, options(depth));
  const auto ranges = some_ranges(60);
  loader.announce(ranges);
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const Batch batch = loader.take(ranges[i]);
    REQUIRE(batch.samples == ranges[i].count);
    REQUIRE(at::equal(batch.inputs, expected(ranges[i], 7)));
    REQUIRE(at::equal(batch.targets, -expected(ranges[i], 7)));
  }
  CHECK(data.reads == 60);
}

TEST_CASE("loader: a replica takes every third, and nothing else is read", "[data]") {
  const Numbers data;
  Loader loader(data, options());
  const auto ranges = some_ranges(20);
  std::vector<MicroBatchRange> wanted;
  for (std::size_t i = 1; i < 20; i += 3) wanted.push_back(ranges[i]);
  loader.announce(wanted);
  for (const MicroBatchRange& range : wanted) {
    CHECK(at::equal(loader.take(range).inputs, expected(range, 7)));
  }
  CHECK(data.reads == static_cast<int>(wanted.size()));
  CHECK_THROWS_AS(loader.take(ranges[0]), InternalError);  // never announced
  CHECK_THROWS_AS(loader.take(ranges[1]), InternalError);  // taken before
}

TEST_CASE("loader: any order works at any depth", "[data]") {
  Numbers data;
  data.delay = 200us;
  Loader loader(data, options(GENERATE(1, 3)));
  const auto ranges = some_ranges(16);
  loader.announce(ranges);
  for (int i = 0; i < 16; ++i) {
    const MicroBatchRange& range = ranges[static_cast<std::size_t>((i * 11 + 5) % 16)];
    CHECK(at::equal(loader.take(range).inputs, expected(range, 7)));
  }
  CHECK(data.reads == 16);
}

TEST_CASE("loader: reads what is asked for only", "[data]") {
  const Numbers data;
  LoaderOptions targets_only = options();
  targets_only.inputs = false;
  Loader loader(data, targets_only);
  loader.announce(some_ranges(3));
  const Batch batch = loader.take(some_ranges(3)[0]);
  CHECK_FALSE(batch.inputs.defined());
  CHECK(batch.targets.defined());
  CHECK(data.reads == 0);
}

TEST_CASE("loader: reads ahead, but only so far", "[data]") {
  Numbers data;
  data.delay = 50ms;
  Loader loader(data, options(3));
  loader.announce(some_ranges(20));
  wait_until([&] { return data.reads == 3; });
  std::this_thread::sleep_for(70ms);
  CHECK(data.reads == 3);
  const double before = loader.waited().value;
  (void)loader.take(some_ranges(20)[0]);
  CHECK(loader.waited().value - before < 0.025);  // it was there
  wait_until([&] { return data.reads == 4; });
}

TEST_CASE("loader: the first that is ready can be had without waiting", "[data]") {
  Numbers data;
  const auto ranges = some_ranges(6);
  data.broken_sample = expected(ranges[4], 7)[0].item<std::int64_t>();
  Loader loader(data, options(3));
  CHECK_FALSE(loader.take_ready().has_value());
  loader.announce(ranges);
  wait_until([&] { return data.reads == 3; });  // the first two are there
  const auto first = loader.take_ready();
  REQUIRE(first.has_value());
  CHECK(first->range == ranges[0]);
  CHECK(at::equal(first->batch.inputs, expected(ranges[0], 7)));
  CHECK_THROWS((void)loader.take(ranges[0]));  // it was taken
  CHECK(at::equal(loader.take(ranges[1]).inputs, expected(ranges[1], 7)));
  wait_until([&] { return data.reads == 5; });
  const auto third = loader.take_ready();
  REQUIRE(third.has_value());
  CHECK(third->range == ranges[2]);
  CHECK(at::equal(loader.take(ranges[3]).inputs, expected(ranges[3], 7)));
  wait_until([&] { return data.reads == 6; });
  CHECK_FALSE(loader.take_ready().has_value());  // reading it threw
  CHECK_THROWS_WITH(loader.take(ranges[4]), "sample is broken");
}

TEST_CASE("loader: measures what reading ahead could not hide", "[data]") {
  Numbers data;
  data.delay = 5ms;
  Loader loader(data, options(2));
  const auto ranges = some_ranges(4);
  loader.announce(ranges);
  for (const MicroBatchRange& range : ranges) (void)loader.take(range);
  CHECK(loader.waited().value > 0.009);
}

TEST_CASE("loader: who is asked for short reads makes them in take, and leaves long ones to its thread",
          "[data]") {
  Numbers data;
  LoaderOptions asked = options(2);
  asked.short_reads_in_take = true;
  Loader loader(data, asked);
  const auto ranges = some_ranges(100);
  loader.announce(ranges);
  std::size_t next = 0;
  const auto take = [&] {
    CHECK(at::equal(loader.take(ranges[next]).inputs, expected(ranges[next], 7)));
    ++next;
  };
  data.delay = 1ms;
  for (int k = 0; k < 10; ++k) take();
  wait_until([&] { return data.reads == static_cast<int>(next) + 2; });  // ahead
  data.delay = 0us;
  // A busy machine may make any of them long.
  int made_here = 0;
  for (int k = 0; k < 60; ++k) {
    take();
    if (data.reads == static_cast<int>(next)) ++made_here;
  }
  CHECK(made_here > 20);
  data.delay = 1ms;
  for (int k = 0; k < 10; ++k) take();
  wait_until([&] { return data.reads == static_cast<int>(next) + 2; });
}

TEST_CASE("loader: what reading throws comes out of the take that asks for it", "[data]") {
  Numbers data;
  const auto ranges = some_ranges(8);
  data.broken_sample = expected(ranges[2], 7)[0].item<std::int64_t>();
  Loader loader(data, options(4));
  loader.announce(ranges);
  CHECK_NOTHROW((void)loader.take(ranges[0]));
  CHECK_NOTHROW((void)loader.take(ranges[1]));
  CHECK_THROWS_WITH(loader.take(ranges[2]), "sample is broken");
  CHECK_NOTHROW((void)loader.take(ranges[3]));
}

TEST_CASE("loader: the segment that follows is read ahead before this one is over", "[data]") {
  const Numbers data;
  Loader loader(data, options(2));
  const auto ranges = some_ranges(30);
  const auto announce = [&](std::ptrdiff_t from, std::ptrdiff_t to) {
    loader.announce(std::vector<MicroBatchRange>(ranges.begin() + from, ranges.begin() + to));
  };
  announce(0, 4);
  announce(4, 8);
  announce(0, 4);  // known: changes nothing
  for (std::size_t i = 0; i < 4; ++i)
    REQUIRE(at::equal(loader.take(ranges[i]).inputs, expected(ranges[i], 7)));
  wait_until([&] { return data.reads == 6; });  // the first two of the next segment are there
  for (std::size_t i = 4; i < 8; ++i)
    REQUIRE(at::equal(loader.take(ranges[i]).inputs, expected(ranges[i], 7)));
  announce(0, 4);  // again, as the next validation pass does
  for (std::size_t i = 0; i < 4; ++i)
    REQUIRE(at::equal(loader.take(ranges[i]).inputs, expected(ranges[i], 7)));
  CHECK(data.reads == 12);
}

TEST_CASE("loader: can be destroyed at any time", "[data]") {
  Numbers data;
  data.delay = 500us;
  for (int i = 0; i < 20; ++i) {
    Loader loader(data, options(2));
    if (i % 4 != 0) loader.announce(some_ranges(10));
    if (i % 4 > 1) std::this_thread::sleep_for(std::chrono::microseconds(100 * i));
    if (i % 4 == 3) (void)loader.take(some_ranges(10)[1]);
  }
}

}  // namespace
}  // namespace stagecraft
