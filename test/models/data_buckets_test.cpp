// Samples cut to a few lengths, and the order in which an epoch reads them.

#include "base/error.h"
#include "base/json.h"
#include "models/data/buckets.h"
#include "models/data/data_facts.h"
#include "models/data/loader.h"
#include "models/data/sample_order.h"
#include "models/data/synthetic.h"
#include "test/support/catch.h"
#include "test/support/padded_data.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
#include <set>

namespace stagecraft {
namespace {

using Catch::Matchers::ContainsSubstring;

const InputPlace kPlace{"run.json", "/data/buckets"};

/// Of 4 positions; sample i is 4 - i % 4 long.
std::unique_ptr<Dataset> bucketed(std::int64_t samples, const std::vector<std::int64_t>& lengths) {
  return in_buckets(std::make_unique<test::PaddedData>(samples, 6), lengths, kPlace);
}

std::vector<MicroBatchRange> epoch_of(std::int64_t samples, std::int64_t batch, std::int64_t micro_batch,
                                      std::int64_t epoch) {
  std::vector<MicroBatchRange> ranges;
  for (std::int64_t first = 0; first < samples; first += batch) {
    const std::int64_t end = std::min(samples, first + batch);
    for (std::int64_t at = first; at < end; at += micro_batch)
      ranges.push_back({epoch, at, std::min(micro_batch, end - at)});
  }
  return ranges;
}

TEST_CASE("buckets: samples are cut to the shortest length that holds them, and numbered by it", "[data]") {
  const test::PaddedData whole(10, 6);
  const auto data = bucketed(10, {2, 3, 4});
  const std::vector<LengthBucket> buckets = data->buckets(Split::train);
  REQUIRE(buckets.size() == 3);
  CHECK(buckets[0].length == 2);
  CHECK(buckets[0].samples == 4);  // 2, 3, 6 and 7 are 2 or 1 long
  CHECK(buckets[1].samples == 3);  // 1, 5 and 9
  CHECK(buckets[2].length == kWholeLength);
  CHECK(buckets[2].samples == 3);
  CHECK(at::equal(data->inputs(Split::train, {3, 0}), whole.inputs(Split::train, {7, 2}).narrow(1, 0, 2)));
  CHECK(at::equal(data->field(Split::train, "labels", {4, 1}),
                  whole.field(Split::train, "labels", {1, 3}).narrow(1, 0, 3)));
  CHECK(at::equal(data->inputs(Split::train, {9, 4}), whole.inputs(Split::train, {8, 1})));
  CHECK(data->inputs(Split::train, {3, 0}).is_contiguous());
  CHECK(data->sample().shape == whole.sample().shape);
  CHECK(at::equal(data->uncut().inputs(Split::train, {3}), whole.inputs(Split::train, {3})));
  CHECK_THAT(data->summary(), ContainsSubstring("4 of 2, 3 of 3, 3 of 4"));
  CHECK(computed_positions(*data) == Approx((4 * 2 + 3 * 3 + 3 * 4) / 40.0));
  CHECK(computed_positions(whole) == 1);
  CHECK(data->fingerprint() != bucketed(10, {2, 4})->fingerprint());

  const std::vector<BatchField> filled{{"ones", "", 1, {4}}};
  CHECK(at::equal(read_fields(*data, Split::train, filled, {4, 1}).at("ones"), at::ones({2, 3}, at::kLong)));
}

TEST_CASE("buckets: each epoch reads every sample once, in mini-batches of one length", "[data]") {
  constexpr std::int64_t kSamples = 203, kBatch = 12;
  const auto data = bucketed(kSamples, {1, 2, 4});
  const SampleOrder order(*data, Split::train, {.seed = 5, .batch = kBatch});
  std::set<std::vector<std::int64_t>> orders;
  for (const std::int64_t epoch : {0, 1, 2}) {
    std::vector<std::int64_t> read;
    std::set<std::int64_t> mixed;
    std::vector<std::int64_t> lengths;
    for (const MicroBatchRange& range : epoch_of(kSamples, kBatch, 4, epoch)) {
      const std::vector<std::int64_t> samples = order.samples(range);
      const BatchSize size = order.size(range);
      REQUIRE(size.samples == static_cast<std::int64_t>(samples.size()));
      const std::int64_t length = size.length == kWholeLength ? 4 : size.length;
      REQUIRE(data->inputs(Split::train, samples).size(1) == length);
      read.insert(read.end(), samples.begin(), samples.end());
      lengths.push_back(length);
      const auto buckets = data->buckets(Split::train);
      for (const std::int64_t sample : samples) {
        if (length_of(buckets, {sample}) != size.length) mixed.insert(range.first / kBatch);
      }
    }
    CHECK(mixed.size() <= 2);  // one where two lengths meet
    CHECK_FALSE(std::is_sorted(lengths.begin(), lengths.end()));
    orders.insert(read);
    std::sort(read.begin(), read.end());
    std::vector<std::int64_t> all(kSamples);
    std::iota(all.begin(), all.end(), 0);
    CHECK(read == all);
  }
  CHECK(orders.size() == 3);
}

TEST_CASE("buckets: without shuffling samples come by their numbers", "[data]") {
  const auto data = bucketed(22, {2, 4});
  const SampleOrder order(*data, Split::train, {.seed = 5, .shuffle = false, .batch = 8});
  CHECK(order.samples({3, 8, 4}) == std::vector<std::int64_t>{8, 9, 10, 11});
  CHECK(order.size({3, 4, 4}) == BatchSize{4, 2});
  CHECK(order.size({3, 8, 4}) == BatchSize{4, kWholeLength});
  CHECK(order.size({3, 20, 2}) == BatchSize{2, kWholeLength});
}

TEST_CASE("buckets: without them the order is the shuffle's", "[data]") {
  const test::PaddedData data(30, 6);
  const SampleOrder order(data, Split::train, {.seed = 5, .batch = 8});
  const Shuffle shuffle(30, 5, 2, true);
  CHECK(order.samples({2, 8, 3}) == std::vector<std::int64_t>{shuffle(8), shuffle(9), shuffle(10)});
  CHECK(order.size({2, 8, 3}) == BatchSize{3});
}

TEST_CASE("buckets: a rank that is told of the data knows the same lengths", "[data]") {
  const auto there = bucketed(50, {1, 3, 4});
  const auto told = dataset_of(json::read<DataFacts>(json::write(facts_of(*there)), {"facts", ""}));
  const SampleOrder::Options options{.seed = 9, .batch = 8};
  const SampleOrder here(*told, Split::train, options), expected(*there, Split::train, options);
  for (const MicroBatchRange& range : epoch_of(50, 8, 2, 4)) CHECK(here.size(range) == expected.size(range));
  CHECK(told->buckets(Split::validation).size() == 3);
}

TEST_CASE("buckets: a loader hands over batches of their length", "[data]") {
  const auto data = bucketed(40, {2, 4});
  const LoaderOptions options{.seed = 3, .batch = 10};
  Loader loader(*data, options);
  const std::vector<MicroBatchRange> ranges = epoch_of(40, 10, 5, 1);
  loader.announce(ranges);
  for (const MicroBatchRange& range : ranges) {
    CHECK(at::equal(loader.take(range).inputs,
                    data->inputs(Split::train, order_of(*data, options).samples(range))));
  }
}

TEST_CASE("buckets: what is no list of lengths is refused", "[data]") {
  const auto refusal = [](const std::vector<std::int64_t>& lengths) {
    try {
      (void)bucketed(10, lengths);
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  CHECK(refusal({4}) == "accepted");
  CHECK_THAT(refusal({2}),
             ContainsSubstring("/data/buckets/0") && ContainsSubstring("expected 4, the length of a sample"));
  CHECK_THAT(refusal({2, 2, 4}),
             ContainsSubstring("/data/buckets/1") && ContainsSubstring("ascend from 1 on, found 2"));
  CHECK_THAT(refusal({0, 4}), ContainsSubstring("/data/buckets/0"));
  CHECK_THAT(refusal({2, 8}), ContainsSubstring("/data/buckets/1") && ContainsSubstring("found 8"));
  SyntheticDataConfig numbers;
  numbers.shape = {4};
  CHECK_THROWS_WITH(in_buckets(open_dataset({numbers}, {}), {2, 4}, kPlace),
                    ContainsSubstring("does not say how long its samples are"));
}

}  // namespace
}  // namespace stagecraft
