// Data on its way to a device: what is ahead and what is not, and that nobody reads it before it is there.

#include "engine/core/device_feed.h"

#include "base/error.h"
#include "test/support/catch.h"
#include "test/support/fake_accelerator.h"
#include "test/support/fake_streams.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <atomic>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

using namespace stagecraft;
using namespace stagecraft::test;

namespace {

constexpr std::int64_t kAllOpen = 1000;

/// Sample i is the number i. Reads of samples from `closed_from` on wait until it is raised.
class NumberedSamples final : public Dataset {
 public:
  std::atomic<std::int64_t> closed_from = kAllOpen;
  std::int64_t broken_sample = -1;
  mutable std::atomic<int> begun = 0;

  [[nodiscard]] std::int64_t size(Split) const override { return 100; }
  [[nodiscard]] SampleSpec sample() const override { return {{}, at::kLong, 0}; }
  [[nodiscard]] at::Tensor inputs(Split, const std::vector<std::int64_t>& indices) const override {
    ++begun;
    for (const std::int64_t index : indices) {
      while (index >= closed_from) std::this_thread::yield();
      if (index == broken_sample) throw InputError("sample is broken");
    }
    return at::tensor(indices, at::kFloat);
  }
  [[nodiscard]] at::Tensor targets(Split, const std::vector<std::int64_t>& indices) const override {
    return at::tensor(indices, at::kLong);
  }
  [[nodiscard]] std::string fingerprint() const override { return ""; }
  [[nodiscard]] std::string summary() const override { return ""; }
};

const std::vector<MicroBatchRange> kRanges{{0, 0, 4},  {0, 4, 4},  {0, 8, 4},  {0, 12, 4},
                                           {0, 16, 4}, {0, 20, 4}, {0, 24, 4}, {0, 28, 3}};
constexpr std::size_t kDepth = 3;

c10::Stream make_stream() {
  return c10::impl::VirtualGuardImpl(fake_accelerator().type()).getStreamFromGlobalPool(fake_accelerator());
}

struct Fed {
  NumberedSamples data;
  std::unique_ptr<DeviceFeed> feed = std::make_unique<DeviceFeed>(
      std::make_unique<Loader>(data, LoaderOptions{.shuffle = false, .depth = static_cast<int>(kDepth)}),
      make_stream());

  /// Until micro-batch `i` is ready: the reading thread begins the next one behind it.
  void wait_until_ready(std::size_t i) const {
    while (data.begun < static_cast<int>(i) + 2) std::this_thread::yield();
  }
  ~Fed() { data.closed_from = kAllOpen; }
};

/// What the device computes of a batch as soon as it is taken, and whether it is right.
bool right(const Batch& batch, const MicroBatchRange& range) {
  const at::Tensor computed = batch.inputs.add(batch.targets);
  const at::Tensor expected = 2 * at::arange(range.first, range.first + range.count, at::kFloat);
  return batch.samples == range.count && batch.inputs.device() == fake_accelerator() &&
         batch.targets.device() == fake_accelerator() && at::equal(computed.cpu(), expected);
}

/// Inputs and targets are a copy each.
std::size_t copies_under_way() { return FakeStreams::here().copies_under_way(); }

}  // namespace

TEST_CASE("the fake's copies on a stream of their own are there when an event was waited for, not before",
          "[device_feed]") {
  const c10::InferenceMode no_autograd;
  const at::Tensor host = at::arange(4, at::kFloat);
  const c10::Stream copies = make_stream();
  const c10::Stream computes = c10::impl::VirtualGuardImpl(copies.device_type()).getStream(copies.device());
  const auto copy = [&](const at::Tensor& to) {
    const c10::StreamGuard on_copies(copies);
    to.copy_(host, /*non_blocking=*/true);
  };
  const at::Tensor here = at::empty({4}, at::TensorOptions(fake_accelerator()));
  CHECK_THROWS_AS(copy(here), InternalError);  // what used this memory may not be over
  c10::Event memory_free(copies.device_type()), before(copies.device_type()), after(copies.device_type());
  memory_free.record(computes);
  memory_free.block(copies);
  before.record(copies);
  copy(here);
  after.record(copies);
  CHECK(here.isnan().all().cpu().item<bool>());
  before.block(computes);
  CHECK(here.isnan().all().cpu().item<bool>());
  CHECK_FALSE(after.query());
  after.block(computes);
  CHECK(at::equal(here.cpu(), host));
  CHECK(copies_under_way() == 0);
}

TEST_CASE("the next micro-batch is copied while one is computed", "[device_feed]") {
  const c10::InferenceMode no_autograd;
  Fed fed;
  fed.feed->announce(kRanges);
  for (std::size_t i = 0; i < kRanges.size(); ++i) {
    const bool next_is_ready = i + kDepth <= kRanges.size();
    if (next_is_ready) fed.wait_until_ready(i + 1);
    const std::int64_t waits = host_waits();
    const Batch batch = fed.feed->take(kRanges[i]);
    if (next_is_ready) CHECK(copies_under_way() == 2);
    CHECK(host_waits() == waits);
    CHECK(right(batch, kRanges[i]));
  }
  CHECK(copies_under_way() == 0);
}

TEST_CASE("what is ahead and announced again is not read again", "[device_feed]") {
  const c10::InferenceMode no_autograd;
  Fed fed;
  fed.feed->announce(kRanges);
  fed.wait_until_ready(1);
  CHECK(right(fed.feed->take(kRanges[0]), kRanges[0]));
  fed.feed->announce(std::vector<MicroBatchRange>(kRanges.begin() + 1, kRanges.end()));
  for (std::size_t i = 1; i < kRanges.size(); ++i) CHECK(right(fed.feed->take(kRanges[i]), kRanges[i]));
  CHECK_THROWS_AS((void)fed.feed->take(kRanges[1]), InternalError);
}

TEST_CASE("micro-batches may be taken in another order", "[device_feed]") {
  const c10::InferenceMode no_autograd;
  Fed fed;
  fed.feed->announce(kRanges);
  fed.wait_until_ready(1);
  CHECK(right(fed.feed->take(kRanges[0]), kRanges[0]));
  fed.wait_until_ready(3);  // which must not take the place of what is ahead
  for (const std::size_t i : {2, 7, 1, 4, 3, 6, 5}) CHECK(right(fed.feed->take(kRanges[i]), kRanges[i]));
}

TEST_CASE("memory is not let go of while a copy into it is under way", "[device_feed]") {
  const c10::InferenceMode no_autograd;
  {
    Fed fed;
    fed.feed->announce(kRanges);
    fed.wait_until_ready(1);
    CHECK(right(fed.feed->take(kRanges[0]), kRanges[0]));
    CHECK(copies_under_way() == 2);
  }
  CHECK(copies_under_way() == 0);
}

TEST_CASE("what is not read yet is not waited for", "[device_feed]") {
  const c10::InferenceMode no_autograd;
  Fed fed;
  fed.data.closed_from = 4;
  fed.feed->announce(kRanges);
  CHECK(right(fed.feed->take(kRanges[0]), kRanges[0]));
  CHECK(copies_under_way() == 0);
  fed.data.closed_from = kAllOpen;
  for (std::size_t i = 1; i < kRanges.size(); ++i) CHECK(right(fed.feed->take(kRanges[i]), kRanges[i]));
}

TEST_CASE("what reading throws comes out of its own take, on a device too", "[device_feed]") {
  const c10::InferenceMode no_autograd;
  Fed fed;
  fed.data.broken_sample = 5;
  fed.feed->announce(kRanges);
  fed.wait_until_ready(1);
  CHECK(right(fed.feed->take(kRanges[0]), kRanges[0]));
  CHECK_THROWS_WITH(fed.feed->take(kRanges[1]), "sample is broken");
  for (std::size_t i = 2; i < kRanges.size(); ++i) CHECK(right(fed.feed->take(kRanges[i]), kRanges[i]));
}
