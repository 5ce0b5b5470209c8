// Something is thrown before an action, whatever the action is, on whatever rank, while transfers are under way over
// NCCL: all ranks end, soon, by that error or by having heard of it, and nothing that is destroyed on the way waits for
// a device that stands still.

#include "engine/core/overflow.h"
#include "test/engine/on_devices.h"
#include "test/support/catch.h"
#include "test/support/demand.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <iostream>
#include <map>
#include <new>
#include <set>
#include <string>
#include <vector>

using namespace stagecraft;
using namespace stagecraft::test;

namespace {

/// Throws before the action at position `at` of a rank's list.
class FailsBeforeAction final : public DelayedTransport {
 public:
  FailsBeforeAction(Transport& inner, std::size_t at, int kind)
      : DelayedTransport(inner, 1), at_(at), kind_(kind) {}
  /// The executor asks once per action, for its pulse.
  Waits& waits() override {
    if (next_++ == at_) fail();
    return DelayedTransport::waits();
  }

 private:
  [[noreturn]] void fail() const {
    switch (kind_ % 3) {
      case 0:
        throw InternalError("planted: CUDA error: an illegal memory access was encountered");
      case 1:
        throw c10::OutOfMemoryError({__func__, __FILE__, 0}, "planted: out of memory");
      default:
        throw NotFiniteError(0, "planted: NaN", false);
    }
  }
  std::size_t at_;
  int kind_;
  std::size_t next_ = 0;
};

/// Positions in a rank's list: of every kind of action the first and one in the middle.
std::set<std::size_t> places(const std::vector<Action>& list) {
  std::map<Op, std::vector<std::size_t>> of_kind;
  for (std::size_t i = 0; i < list.size(); ++i) of_kind[list[i].op].push_back(i);
  std::set<std::size_t> chosen;
  for (const auto& [op, all] : of_kind) chosen.insert({all.front(), all[all.size() / 2]});
  return chosen;
}

std::vector<PipelineCase> cases_of_faults() {
  return {{.schedule = "1f1b", .stages = 2, .recompute = Recompute::all, .clipping = 0.05},
          {.schedule = "1f1b", .stages = 2, .widths = {2, 1}},
          {.schedule = "zb_h1", .stages = 3},
          {.schedule = "zb_v", .stages = 4, .ranks = 2, .placement = PlacementKind::v},
          {.schedule = "pipedream", .stages = 2, .widths = {1, 2}},
          {.schedule = "1f1b", .stages = 3, .model = ModelKind::tied}};
}

}  // namespace

TEST_CASE("a fault before any kind of action ends the run on all ranks, soon", "[faults]") {
  constexpr double kSoon = 15;
  int faults = 0;
  double longest = 0;
  std::set<Op> kinds;
  for (const PipelineCase& pipeline : cases_of_faults()) {
    Setting setting = with_graphs(pipeline);
    const int ranks = setting.placement.world();
    SegmentWalk walk(setting.shape);
    Segment segment;
    demand(walk.next(segment), "a segment");
    const LoweredProgram& program = setting.programs->of(setting, segment);
    for (int failing = 0; failing < ranks; ++failing) {
      const std::vector<Action>& list = program.ranks[static_cast<std::size_t>(failing)];
      for (const std::size_t at : places(list)) {
        INFO(pipeline.name() << ": rank " << failing << " throws before " << describe_action(list[at]));
        kinds.insert(list[at].op);
        std::vector<std::string> said(static_cast<std::size_t>(ranks));
        const auto begun = std::chrono::steady_clock::now();
        try {
          run_on_devices(ranks, over_nccl(setting), [&](Transport& transport) {
            const bool fails = transport.rank().value == failing;
            try {
              if (fails) {
                FailsBeforeAction its(transport, at, faults);
                (void)run_rank(setting, its);
              } else {
                (void)run_rank(setting, transport);
              }
              transport.barrier();
            } catch (const std::exception& error) {
              said[transport.rank().index()] = error.what();
              throw;
            }
          });
        } catch (const std::exception&) {  // each rank's is in `said`
        }
        const double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
        longest = std::max(longest, took);
        CHECK(took < kSoon);
        for (const std::string& of_rank : said) {
          INFO(of_rank);
          CHECK(of_rank.find("planted") != std::string::npos);
        }
        ++faults;
      }
    }
  }
  std::cout << fmt::format(
      "{} faults before {} kinds of actions over NCCL, all ranks end, after {:.1f} s at most\n", faults,
      kinds.size(), longest);
  CHECK(kinds.size() == 16);
}
