#include "engine/core/versions.h"

#include "base/error.h"
#include "schedules/generators/registry.h"
#include "schedules/generators/schedule.h"
#include "schedules/memory/stage_counts.h"
#include "test/support/catch.h"

#include <ATen/ATen.h>

using namespace stagecraft;

namespace {

Versions make_versions() { return Versions({{at::full({2}, 1.0), at::full({3}, 1.0)}, {}}); }

Action forward(int micro_batch, int version) {
  return {.op = Op::forward,
          .stage = StageId{0},
          .micro_batch = MicroBatch{micro_batch},
          .version = Version{version}};
}
Action step(int version) {
  return {.op = Op::step, .stage = StageId{0}, .version = Version{version}, .group = Group{version}};
}

}  // namespace

TEST_CASE("a step updates in place when nobody reads its source any more", "[worker]") {
  Versions versions = make_versions();
  versions.begin(version_reads({forward(0, 0), step(0), forward(1, 1), step(1)}, StageId{0}));
  const void* memory = versions.read(Version{0})[0][0].const_data_ptr();
  for (const int version : {0, 1}) {
    const auto& next = versions.advance(Version{version}, version == 0 ? 1 : 3);
    CHECK(next[0][0].const_data_ptr() == memory);
    next[0][0].add_(1);
  }
  CHECK(versions.held() == 1);
  CHECK(versions.newest()[0][0][0].item<double>() == 3);
  CHECK_THROWS_AS(versions.read(Version{0}), InternalError);
}

TEST_CASE("in mixed precision versions are rounded copies of weights that are there once", "[worker]") {
  const at::Tensor full = at::full({2}, 1.0);
  Versions versions({{full}}, {{full.to(at::kBFloat16)}});
  versions.begin(version_reads({forward(0, 0), step(0), forward(1, 0), step(1), forward(2, 2)}, StageId{0}));
  const double half = 1.0 / 256;  // of the distance between bfloat16 numbers here: lost there, not in float
  for (const int version : {0, 1}) {
    const auto& next = versions.advance(Version{version}, version == 0 ? 1 : 3);
    CHECK(next[0][0].const_data_ptr() == full.const_data_ptr());
    next[0][0].add_(half);
    versions.publish();
    CHECK(versions.newest()[0][0][0].item<double>() == 1 + (version + 1) * half);
    const at::Tensor& read = versions.read(Version{version + 1})[0][0];
    CHECK(read.scalar_type() == at::kBFloat16);
    CHECK(read[0].item<double>() == (version == 0 ? 1 : 1 + 2 * half));
  }
  CHECK(versions.held() == 2);
}

TEST_CASE("a step copies when its source is read later, and the ring is reused", "[worker]") {
  Versions versions = make_versions();
  // Every version is read once more after the step that replaces it.
  const std::vector<Action> list{forward(0, 0), step(0),       forward(1, 0), step(1),      forward(2, 1),
                                 step(2),       forward(3, 2), step(3),       forward(4, 4)};
  for (int segment = 0; segment < 2; ++segment) {
    versions.begin(version_reads(list, StageId{0}));
    const double start = versions.newest()[0][0][0].item<double>();
    for (int version = 0; version < 4; ++version) {
      const std::size_t at = static_cast<std::size_t>(2 * version + 1);
      const auto& next = versions.advance(Version{version}, at);
      for (const at::Tensor& tensor : next[0]) tensor.add_(1);
      CHECK(versions.newest()[0][1][2].item<double>() == start + version + 1);
      if (version < 3) CHECK(versions.read(Version{version})[0][0][1].item<double>() == start + version);
    }
    CHECK(versions.held() == 2);
  }
  CHECK_THROWS_AS(versions.advance(Version{2}, 0), InternalError);
}

TEST_CASE("stashing holds p - s versions on stage s, vertical sync at most p everywhere", "[worker]") {
  const bool vertical_sync = GENERATE(false, true);
  const int stages = 4;
  const std::vector<int> groups(12, 1);
  const ScheduleProgram program = find_schedule("pipedream")
                                      .generate({.placement = Placement::straight(stages),
                                                 .group_sizes = groups,
                                                 .vertical_sync = vertical_sync,
                                                 .clip = false});
  for (int s = 0; s < stages; ++s) {
    Versions versions = make_versions();
    const auto& list = program.ranks[static_cast<std::size_t>(s)];
    versions.begin(version_reads(list, StageId{s}));
    for (std::size_t at = 0; at < list.size(); ++at) {
      if (is_compute(list[at].op)) CHECK_NOTHROW(versions.read(list[at].version));
      if (list[at].op == Op::step) (void)versions.advance(list[at].version, at);
    }
    CAPTURE(s, vertical_sync);
    CHECK(static_cast<int>(versions.held()) == stage_counts(program)[static_cast<std::size_t>(s)].versions);
    if (!vertical_sync) CHECK(static_cast<int>(versions.held()) == stages - s);
  }
}
