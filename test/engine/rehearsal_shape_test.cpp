// What is rehearsed of a run: enough micro-batches for a steady step, and no more than the run has.

#include "engine/run/train/rehearsal.h"
#include "test/support/catch.h"

#include <numeric>

using namespace stagecraft;

namespace {

std::vector<Segment> walked(const RunShape& shape) {
  std::vector<Segment> segments;
  SegmentWalk walk(shape);
  for (Segment segment; walk.next(segment);) segments.push_back(segment);
  return segments;
}

}  // namespace

TEST_CASE("a synchronous run's full step, its short one and a validation are rehearsed",
          "[rehearsal_shape]") {
  RunShape run;
  run.samples = 10'020;
  run.validation_samples = 1003;
  run.batch = 100;
  run.micro_batch = 2;
  run.steps = 5000;
  run.first_step = 700;
  run.validate_every = 50;
  run.checkpoint_every = 70;
  const std::vector<Segment> segments = walked(rehearsal_shape(run, /*ranks=*/4, /*in_flight=*/4));
  REQUIRE(segments.size() == 3);
  CHECK(segments[0].group_sizes == std::vector<int>{8});  // a multiple of the ranks, above what is in flight
  CHECK(segments[1].kind == SegmentKind::train);
  CHECK(segments[2].kind == SegmentKind::validate);
  CHECK(segments[2].micro_batches.back().count == 1);  // the short one of 1003

  run.drop_last = true;
  run.validation_samples = 0;
  CHECK(walked(rehearsal_shape(run, 4, 4)).size() == 1);
  // Fill-drain has all in flight: the whole step.
  CHECK(walked(rehearsal_shape(run, 4, 50)).front().group_sizes == std::vector<int>{50});
}

TEST_CASE("of an asynchronous run as many steps are rehearsed as keep its stages busy", "[rehearsal_shape]") {
  RunShape run;
  run.samples = 64;
  run.batch = 4;
  run.micro_batch = 4;
  run.steps = 1000;
  run.synchronous = false;
  run.synchronous_steps = 20;
  const std::vector<Segment> segments = walked(rehearsal_shape(run, 4, 4));
  REQUIRE(segments.size() == 1);
  const std::vector<int>& groups = segments.front().group_sizes;
  CHECK(std::accumulate(groups.begin(), groups.end(), 0) == 16);
  run.steps = 3;
  CHECK(walked(rehearsal_shape(run, 4, 4)).front().group_sizes.size() == 3);
}

TEST_CASE("every shape of a run has a rehearsal", "[rehearsal_shape]") {
  for (const bool synchronous : {true, false}) {
    for (const std::int64_t samples : {5, 8, 31, 64}) {
      for (const std::int64_t batch : {1, 4, 5, 16}) {
        for (const std::int64_t micro_batch : {1, 2, 3, 16}) {
          if (micro_batch > batch) continue;
          for (const bool drop_last : {false, true}) {
            if (drop_last && batch > samples) continue;
            for (const int in_flight : {1, 4, 16}) {
              RunShape run;
              run.samples = samples;
              run.validation_samples = samples % 7;
              run.batch = batch;
              run.micro_batch = micro_batch;
              run.steps = 9;
              run.synchronous = synchronous;
              run.drop_last = drop_last;
              INFO(synchronous << " " << samples << " " << batch << " " << micro_batch << " " << drop_last
                               << " " << in_flight);
              for (const Segment& segment : walked(rehearsal_shape(run, 4, in_flight))) {
                for (const MicroBatchRange& range : segment.micro_batches) {
                  const bool trains = segment.kind == SegmentKind::train;
                  CHECK(range.count > 0);
                  CHECK(range.first + range.count <= (trains ? run.samples : run.validation_samples));
                }
              }
            }
          }
        }
      }
    }
  }
}
