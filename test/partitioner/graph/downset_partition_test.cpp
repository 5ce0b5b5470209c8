// The best nested downsets against all nested downsets there are.

#include "stagecraft/partitioner/graph/downset_partition.h"

#include "stagecraft/partitioner/compare_costs.h"
#include "stagecraft/partitioner/graph/chain.h"
#include "test/partitioner/graph/nested_cuts.h"
#include "test/partitioner/graph/random_graph.h"
#include "test/support/catch.h"

#include <rapidcheck.h>

#include <algorithm>

namespace stagecraft {
namespace {

StageLine random_line(bool before) {
  const auto factor = [] { return test::random_below(5) / 2.0; };
  StageLine line;
  line.own = {1 + factor(), 1 + factor(), 1 + factor(), factor() / 4};
  if (before) line.before = {factor(), factor(), factor(), 0};
  line.seconds_per_byte = factor() / 4;
  line.constant = factor();
  return line;
}

BottleneckProblem random_problem(int stages, int lines) {
  BottleneckProblem problem;
  problem.lines.resize(static_cast<std::size_t>(stages));
  for (auto& of_stage : problem.lines) {
    for (int n = 0; n < lines; ++n) of_stage.push_back(random_line(true));
  }
  const double slow = test::random_below(4);
  if (test::random_below(3) > 0) {
    problem.boundary = [slow](int stage, double bytes) { return stage + slow * bytes; };
  }
  return problem;
}

double bottleneck(const Downsets& downsets, const BottleneckProblem& problem, const NestedCuts& cuts) {
  double most = 0;
  for (std::size_t s = 0; s < problem.lines.size(); ++s) {
    const int first = s == 0 ? 0 : cuts[s - 1];
    const int last = s == cuts.size() ? downsets.all() : cuts[s];
    for (const StageLine& line : problem.lines[s]) {
      most = std::max(most, value_of(downsets, line, first, last));
    }
    if (s > 0 && problem.boundary) {
      most = std::max(most, problem.boundary(static_cast<int>(s), downsets.crossing(first)));
    }
  }
  return most;
}

struct DownsetsCase {
  LayerGraph graph = test::random_graph(7);
  Downsets downsets = *Downsets::of(graph, single_nodes(narrow_order(graph)));
  int stages = 1 + test::random_below(std::min(4, static_cast<int>(graph.nodes.size())));
};

}  // namespace

TEST_CASE("the least bottleneck is that of all nested downsets", "[downset_partition]") {
  REQUIRE(rc::check("random graphs and stages", [] {
    const DownsetsCase c;
    const BottleneckProblem problem = random_problem(c.stages, 1);
    double least = kInfinite;
    test::every_nested_cuts(c.downsets, c.stages, [&](const NestedCuts& cuts) {
      least = std::min(least, bottleneck(c.downsets, problem, cuts));
    });
    const BottleneckResult found = least_bottleneck(c.downsets, problem, 0, kInfinite, 0);
    RC_ASSERT(found.cuts.has_value());
    RC_ASSERT(test::nested(c.downsets, *found.cuts));
    RC_ASSERT(bottleneck(c.downsets, problem, *found.cuts) == Approx(least).epsilon(1e-9));
    RC_ASSERT(found.seconds == Approx(least).epsilon(1e-9));
    RC_ASSERT(found.bound == Approx(least).epsilon(1e-9));
    RC_ASSERT(!least_bottleneck(c.downsets, problem, 0, least, 0).cuts);
    RC_ASSERT(least_bottleneck(c.downsets, problem, 0, least, 0).bound == Approx(least).epsilon(1e-9));
    const BottleneckResult rough = least_bottleneck(c.downsets, problem, 0, kInfinite, 0.2);
    RC_ASSERT(rough.bound <= least * (1 + 1e-9));
    RC_ASSERT(rough.seconds >= least * (1 - 1e-9));
    RC_ASSERT(rough.bound >= rough.seconds * 0.79);
  }));
}

TEST_CASE("with several lines the bound is none the less one", "[downset_partition]") {
  REQUIRE(rc::check("random graphs and stages", [] {
    const DownsetsCase c;
    const BottleneckProblem problem = random_problem(c.stages, 2);
    double least = kInfinite;
    test::every_nested_cuts(c.downsets, c.stages, [&](const NestedCuts& cuts) {
      least = std::min(least, bottleneck(c.downsets, problem, cuts));
    });
    const BottleneckResult found = least_bottleneck(c.downsets, problem, 0, kInfinite, 0);
    RC_ASSERT(found.cuts.has_value());
    RC_ASSERT(test::nested(c.downsets, *found.cuts));
    RC_ASSERT(found.bound <= least * (1 + 1e-9));
    RC_ASSERT(found.seconds >= least * (1 - 1e-9));
  }));
}

TEST_CASE("within windows the best of the cuts there are is found", "[downset_partition]") {
  REQUIRE(rc::check("random graphs, stages and windows", [] {
    const DownsetsCase c;
    BottleneckProblem problem = random_problem(c.stages, 1);
    for (int s = 1; s < c.stages; ++s) {
      const double low = test::random_below(60);
      problem.windows.push_back({low, low + test::random_below(80)});
    }
    std::vector<StageLine> lines;
    for (const auto& of_stage : problem.lines) lines.push_back(of_stage.front());
    for (StageLine& line : lines) line.before = {};
    double least = kInfinite;
    double least_sum = kInfinite;
    test::every_nested_cuts(c.downsets, c.stages, [&](const NestedCuts& cuts) {
      double sum = 0;
      for (std::size_t s = 0; s < lines.size(); ++s) {
        if (s > 0 && !problem.windows[s - 1].holds(c.downsets.sums(cuts[s - 1]).compute())) return;
        sum += value_of(c.downsets, lines[s], s == 0 ? 0 : cuts[s - 1],
                        s == cuts.size() ? c.downsets.all() : cuts[s]);
      }
      least = std::min(least, bottleneck(c.downsets, problem, cuts));
      least_sum = std::min(least_sum, sum);
    });
    const BottleneckResult found = least_bottleneck(c.downsets, problem, 0, kInfinite, 0);
    const CheapestResult cheap = cheapest(c.downsets, lines, problem.windows);
    RC_ASSERT(found.cuts.has_value() == (least < kInfinite));
    RC_ASSERT((cheap.seconds < kInfinite) == (least < kInfinite));
    if (least == kInfinite) return;
    RC_ASSERT(found.seconds == Approx(least).epsilon(1e-9));
    RC_ASSERT(cheap.seconds == Approx(least_sum).epsilon(1e-9));
  }));
}

TEST_CASE("the cheapest sum is that of all nested downsets", "[downset_partition]") {
  REQUIRE(rc::check("random graphs and stages", [] {
    const DownsetsCase c;
    std::vector<StageLine> lines;
    for (int s = 0; s < c.stages; ++s) lines.push_back(random_line(false));
    const auto sum = [&](const NestedCuts& cuts) {
      double seconds = 0;
      for (std::size_t s = 0; s < lines.size(); ++s) {
        seconds += value_of(c.downsets, lines[s], s == 0 ? 0 : cuts[s - 1],
                            s == cuts.size() ? c.downsets.all() : cuts[s]);
      }
      return seconds;
    };
    double least = kInfinite;
    test::every_nested_cuts(c.downsets, c.stages,
                            [&](const NestedCuts& cuts) { least = std::min(least, sum(cuts)); });
    const CheapestResult found = cheapest(c.downsets, lines);
    RC_ASSERT(test::nested(c.downsets, found.cuts));
    RC_ASSERT(found.seconds == Approx(least).epsilon(1e-9));
    RC_ASSERT(sum(found.cuts) == Approx(least).epsilon(1e-9));
  }));
}

}  // namespace stagecraft
