#include "schedules/program/segments.h"

#include "test/support/catch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <rapidcheck.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>
#include <string>

namespace stagecraft {
namespace {

std::vector<Segment> walk(const RunShape& shape) {
  std::vector<Segment> segments;
  SegmentWalk steps(shape);
  for (Segment segment; steps.next(segment);) segments.push_back(segment);
  return segments;
}

RunShape random_shape() {
  RunShape shape;
  shape.samples = *rc::gen::inRange(1, 60);
  shape.batch = *rc::gen::inRange<std::int64_t>(1, shape.samples + 1);
  shape.micro_batch = *rc::gen::inRange<std::int64_t>(1, shape.batch + 1);
  shape.validation_samples = *rc::gen::inRange(0, 20);
  shape.steps = *rc::gen::inRange(1, 40);
  shape.validate_every = *rc::gen::inRange(0, 12);
  shape.checkpoint_every = *rc::gen::inRange(0, 12);
  shape.synchronous = *rc::gen::arbitrary<bool>();
  shape.drop_last = *rc::gen::arbitrary<bool>();
  shape.most_segment_micro_batches = *rc::gen::inRange(1, 51);
  if (!shape.synchronous) shape.synchronous_steps = *rc::gen::inRange(-20, 45);
  shape.synchronous_steps = std::max<std::int64_t>(shape.synchronous_steps, 0);
  return shape;
}

/// Long enough that drain points and epochs repeat many times.
RunShape random_long_shape() {
  RunShape shape = random_shape();
  shape.synchronous = false;
  shape.samples = *rc::gen::inRange(1, 20);
  shape.batch = *rc::gen::inRange<std::int64_t>(1, shape.samples + 2);
  shape.micro_batch = *rc::gen::inRange<std::int64_t>(1, shape.batch + 1);
  if (shape.batch > shape.samples) shape.drop_last = false;
  shape.steps = *rc::gen::inRange(1, 4000);
  shape.most_segment_micro_batches = *rc::gen::inRange(1, 200);
  return shape;
}

/// What a segment looks like, in short: "train 0: 4 4 2 *" (* checkpoint).
std::string brief(const Segment& s) {
  return fmt::format("{} {}: {}{}", enum_name(s.kind), s.first_step, fmt::join(s.group_sizes, " "),
                     s.checkpoint_after ? " *" : "");
}
std::vector<std::string> brief(const std::vector<Segment>& segments) {
  std::vector<std::string> text;
  for (const Segment& s : segments) text.push_back(brief(s));
  return text;
}

}  // namespace

TEST_CASE("a synchronous run: one segment per step, a short last mini-batch", "[segments]") {
  const RunShape shape{.samples = 10,
                       .validation_samples = 5,
                       .batch = 4,
                       .micro_batch = 2,
                       .steps = 5,
                       .validate_every = 2,
                       .checkpoint_every = 3};
  CHECK(steps_per_epoch(shape) == 3);
  const auto segments = walk(shape);
  CHECK(brief(segments) == std::vector<std::string>{"train 0: 2", "train 1: 2", "validate 2: 3",
                                                    "train 2: 1 *", "train 3: 2", "validate 4: 3",
                                                    "train 4: 2 *", "validate 5: 3"});
  CHECK(segments[1].micro_batches == std::vector<MicroBatchRange>{{0, 4, 2}, {0, 6, 2}});
  CHECK(segments[3].micro_batches == std::vector<MicroBatchRange>{{0, 8, 2}});
  CHECK(segments[4].micro_batches == std::vector<MicroBatchRange>{{1, 0, 2}, {1, 2, 2}});
  CHECK(segments[2].micro_batches == std::vector<MicroBatchRange>{{0, 0, 2}, {0, 2, 2}, {0, 4, 1}});
}

TEST_CASE("an asynchronous run: from drain point to drain point, over the epoch's end", "[segments]") {
  const RunShape shape{.samples = 10,
                       .validation_samples = 5,
                       .batch = 4,
                       .micro_batch = 3,
                       .steps = 8,
                       .validate_every = 5,
                       .checkpoint_every = 0,
                       .synchronous = false};
  const auto segments = walk(shape);
  CHECK(brief(segments) ==
        std::vector<std::string>{"train 0: 2 2 1 2 2", "validate 5: 2", "train 5: 1 2 2 *", "validate 8: 2"});
  CHECK(segments[0].micro_batches[1] == MicroBatchRange{0, 3, 1});  // the rest of the first mini-batch
  CHECK(segments[0].micro_batches[5] == MicroBatchRange{1, 0, 3});
}

TEST_CASE("a long asynchronous segment drains by itself, at multiples of whole steps", "[segments]") {
  RunShape shape{.samples = 8, .batch = 4, .micro_batch = 1, .steps = 8};
  shape.synchronous = false;
  shape.most_segment_micro_batches = 13;
  CHECK(brief(walk(shape)) == std::vector<std::string>{"train 0: 4 4 4", "train 3: 4 4 4", "train 6: 4 4 *"});
  shape.first_step = 4;  // a resumed run drains where the whole one did
  CHECK(brief(walk(shape)) == std::vector<std::string>{"train 4: 4 4", "train 6: 4 4 *"});
  shape.most_segment_micro_batches = 3;
  CHECK(walk(shape).size() == 4);  // never less than a step
}

TEST_CASE("each epoch takes each sample once", "[segments]") {
  REQUIRE(rc::check([] {
    RunShape shape = random_shape();
    const std::int64_t epoch = steps_per_epoch(shape);
    shape.steps = epoch * 2;
    std::vector<std::int64_t> next(2, 0);
    for (const Segment& segment : walk(shape)) {
      RC_ASSERT(std::accumulate(segment.group_sizes.begin(), segment.group_sizes.end(), std::size_t{0}) ==
                segment.micro_batches.size());
      if (segment.kind == SegmentKind::validate) continue;
      for (const MicroBatchRange& range : segment.micro_batches) {
        RC_ASSERT(range.first == next[static_cast<std::size_t>(range.epoch)]);
        RC_ASSERT(range.count >= 1);
        RC_ASSERT(range.count <= shape.micro_batch);
        next[static_cast<std::size_t>(range.epoch)] += range.count;
      }
    }
    const std::int64_t used = shape.drop_last ? shape.samples / shape.batch * shape.batch : shape.samples;
    RC_ASSERT(next == std::vector<std::int64_t>(2, used));
  }));
}

TEST_CASE("steps follow on, drains and validations come where they are due", "[segments]") {
  REQUIRE(rc::check([] {
    const RunShape shape = random_shape();
    const auto due = [](std::int64_t step, std::int64_t every) { return every > 0 && step % every == 0; };
    std::int64_t step = 0;
    std::int64_t validations = 0;
    bool owed = false;
    for (const Segment& s : walk(shape)) {
      if (s.kind == SegmentKind::validate) {
        RC_ASSERT(owed);
        RC_ASSERT(s.first_step == step);
        owed = false;
        ++validations;
        continue;
      }
      RC_ASSERT(!owed);
      RC_ASSERT(s.first_step == step);
      std::size_t mb = 0;
      for (std::size_t g = 0; g < s.group_sizes.size(); ++g) {
        if (g > 0) RC_ASSERT(!due(step, shape.checkpoint_every));
        if (g > 0 && shape.validation_samples > 0) RC_ASSERT(!due(step, shape.validate_every));
        const auto ranges = step_micro_batches(shape, step);
        RC_ASSERT(ranges.size() == static_cast<std::size_t>(s.group_sizes[g]));
        for (const auto& range : ranges) RC_ASSERT(s.micro_batches[mb++] == range);
        ++step;
      }
      if (shape.synchronous || s.first_step < shape.synchronous_steps) RC_ASSERT(s.group_sizes.size() == 1u);
      RC_ASSERT(s.group_sizes.size() == 1u ||
                std::ssize(s.micro_batches) <= shape.most_segment_micro_batches);
      RC_ASSERT(s.checkpoint_after == (due(step, shape.checkpoint_every) || step == shape.steps));
      owed = shape.validation_samples > 0 && (due(step, shape.validate_every) || step == shape.steps);
    }
    RC_ASSERT(!owed);
    RC_ASSERT(step == shape.steps);
    RC_ASSERT((validations > 0) == (shape.validation_samples > 0));
  }));
}

TEST_CASE("a resumed run goes on as the uninterrupted one would have", "[segments]") {
  REQUIRE(rc::check([] {
    RunShape shape = random_shape();
    const auto whole = walk(shape);
    const auto at = static_cast<std::size_t>(*rc::gen::inRange(0, static_cast<int>(whole.size())));
    // Resume before segment `at`, from the step it begins with.
    shape.first_step = whole[at].first_step;
    shape.validation_owed = whole[at].kind == SegmentKind::validate;
    const std::vector<Segment> rest(whole.begin() + static_cast<std::ptrdiff_t>(at), whole.end());
    RC_ASSERT(brief(walk(shape)) == brief(rest));
  }));
}

TEST_CASE("the distinct shapes are those that occur, each once", "[segments]") {
  REQUIRE(rc::check([] {
    const RunShape shape = *rc::gen::arbitrary<bool>() ? random_shape() : random_long_shape();
    std::set<std::pair<SegmentKind, std::vector<int>>> occur;
    for (const Segment& s : walk(shape)) occur.insert({s.kind, s.group_sizes});
    std::set<std::pair<SegmentKind, std::vector<int>>> named;
    for (const Segment& s : distinct_shapes(shape)) RC_ASSERT(named.insert({s.kind, s.group_sizes}).second);
    RC_ASSERT(named == occur);
  }));
}

TEST_CASE("long runs: shapes without a walk, asynchronous segments of bounded size", "[segments]") {
  RunShape shape{
      .samples = 1'000'003, .validation_samples = 10, .batch = 8, .micro_batch = 4, .steps = 10'000'000};
  CHECK(distinct_shapes(shape).size() == 3);  // full, short, validation
  shape.synchronous = false;
  shape.validate_every = 1;
  CHECK(distinct_shapes(shape).size() == 3);
  shape.validate_every = 0;
  const auto shapes = distinct_shapes(shape);
  for (const Segment& s : shapes) {
    CHECK(std::accumulate(s.group_sizes.begin(), s.group_sizes.end(), 0) <= kMostSegmentMicroBatches);
  }
  shape.batch = shape.micro_batch = 1'000'000;
  shape.steps = 1'000'000'000'000;
  shape.synchronous = true;
  CHECK(distinct_shapes(shape).size() == 2);
}

TEST_CASE("the longest runs' shapes are found without following them", "[segments]") {
  RunShape shape{.samples = 1'000'003,
                 .validation_samples = 10,
                 .batch = 8,
                 .micro_batch = 4,
                 .steps = 100'000'000'000'000,
                 .synchronous = false};
  CHECK(distinct_shapes(shape).size() < 1000);
  shape.samples = kMostRunSamples - 1;
  CHECK(distinct_shapes(shape).size() < 1000);
  for (const std::int64_t every : {1, 3, 1024}) {
    shape.samples = 1'000'003;
    shape.validate_every = every;
    CHECK(distinct_shapes(shape).size() < 10'000);
    shape.samples = 1'000'000;
    CHECK(distinct_shapes(shape).size() < 1000);
  }
  // Primes: they fall together once in 10^15 steps.
  shape.samples = 8 * 99'991 - 1;
  shape.validate_every = 99'989;
  shape.checkpoint_every = 99'971;
  shape.steps = kMostRunSteps;
  CHECK_THROWS_WITH(distinct_shapes(shape), Catch::Matchers::ContainsSubstring("fall together so rarely"));
}

TEST_CASE("epochs count as steps up to the longest run", "[segments]") {
  const RunShape shape{.samples = 1'000'003, .batch = 8, .micro_batch = 4};
  CHECK(steps_of_epochs(shape, 3) == 3 * 125'001);
  const std::int64_t most = kMostRunSteps / 125'001;
  CHECK(steps_of_epochs(shape, most) == most * 125'001);
  CHECK_THROWS_WITH(
      steps_of_epochs(shape, most + 1, {"run.json", "/epochs"}),
      fmt::format("run.json: /epochs: expected at most {} epochs, which are 125001 steps each, found {}",
                  most, most + 1));
  CHECK_THROWS_AS(steps_of_epochs(shape, std::numeric_limits<std::int64_t>::max()), InputError);
}

TEST_CASE("numbers that make no run are refused", "[segments]") {
  const RunShape good{.samples = 10, .batch = 4, .micro_batch = 2, .steps = 3};
  const auto error = [&](const auto& change) -> std::string {
    RunShape shape = good;
    change(shape);
    try {
      SegmentWalk walker(shape);
    } catch (const InputError& e) {
      return e.what();
    }
    return "no error";
  };
  CHECK(error([](RunShape&) {}) == "no error");
  CHECK(error([](RunShape& s) { s.samples = 0; }) == "expected at least 1 training sample, found 0");
  CHECK(error([](RunShape& s) { s.batch = 0; }) == "expected a train_batch_size of at least 1, found 0");
  CHECK(error([](RunShape& s) { s.micro_batch = 0; }) != "no error");
  CHECK(error([](RunShape& s) { s.micro_batch = 5; }) ==
        "expected a micro-batch no larger than train_batch_size, found 5");
  CHECK(error([](RunShape& s) { s.steps = 0; }) != "no error");
  CHECK(error([](RunShape& s) { s.steps = kMostRunSteps + 1; }) ==
        "expected no more than 10^15 steps, found 1000000000000001");
  CHECK(error([](RunShape& s) { s.samples = std::numeric_limits<std::int64_t>::max(); }) != "no error");
  CHECK(error([](RunShape& s) { s.batch = std::numeric_limits<std::int64_t>::max(); }) != "no error");
  CHECK(error([](RunShape& s) { s.first_step = 4; }) != "no error");
  CHECK(error([](RunShape& s) { s.first_step = -1; }) != "no error");
  CHECK(error([](RunShape& s) { s.validate_every = -1; }) != "no error");
  CHECK(error([](RunShape& s) { s.most_segment_micro_batches = 0; }) != "no error");
  CHECK(error([](RunShape& s) { s.checkpoint_every = -1; }) != "no error");
  CHECK(error([](RunShape& s) { s.validation_samples = -1; }) != "no error");
  CHECK(error([](RunShape& s) { s.validation_samples = 1'000'000'000; }) != "no error");
  CHECK(error([](RunShape& s) {
          s.samples = 3;
          s.drop_last = true;
        }) == "expected a whole mini-batch of training samples, as the last short one is dropped, found 3");
  CHECK_THROWS_AS(step_micro_batches(good, 3), InputError);
  RunShape dropped = good;
  dropped.samples = 3;
  dropped.drop_last = true;
  CHECK(steps_per_epoch(dropped) == 0);
  RunShape done = good;
  done.first_step = 3;
  CHECK(walk(done).empty());
}

}  // namespace stagecraft
