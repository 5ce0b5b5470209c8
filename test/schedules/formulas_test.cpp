// The formulas of the papers, for bubble and memory, reproduced by the simulator and the list of actions;
// where a formula does not hold, what is true instead. docs/reference/schedules.md has the table. Times are small
// whole numbers, or those halved a few times: sums of them are exact, so everything is compared to the digit.

#include "schedules/checker/checker.h"
#include "schedules/generators/registry.h"
#include "schedules/generators/schedule.h"
#include "schedules/lowering/lowering.h"
#include "schedules/program/segments.h"
#include "schedules/simulator/simulator.h"
#include "test/support/catch.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

using namespace stagecraft;

namespace {

/// Of a whole rank, for one micro-batch.
struct Times {
  double f = 1, i = 1, w = 1;
  [[nodiscard]] double all() const { return f + i + w; }
};

const std::vector<Times> kTimes{{1, 1, 1}, {2, 3, 1}, {1, 2, 1}, {3, 4, 2}, {2, 2, 1}, {1, 1, 2}, {4, 4, 4}};

struct Measured {
  double bubble = 0;  ///< makespan less the work of a rank
  double span = 0;  ///< longest time from a rank's first action to its last, less the same: without a barrier
  int kept = 0;     ///< most (stage, micro-batch) pairs of a rank from forward to the weight gradient's end
};

ScheduleRequest request_of(const Schedule& schedule, int p, int v, int m) {
  return {.placement = schedule.place(p, v), .group_sizes = {m}};
}

CostTable costs_of(int p, int v, const Times& times) {
  CostTable costs;
  StageCosts stage;
  stage.forward = Seconds{times.f / v};
  stage.backward_input = Seconds{times.i / v};
  stage.backward_weight = Seconds{times.w / v};
  costs.stages.assign(static_cast<std::size_t>(p) * static_cast<std::size_t>(v), stage);
  costs.network.levels = {{p, Link{}}};
  return costs;
}

/// Most pairs that any rank keeps at once.
int most_kept(const ScheduleProgram& program) {
  int most = 0;
  for (const auto& list : program.ranks) {
    int now = 0;
    for (const Action& action : list) {
      if (action.op == Op::forward) most = std::max(most, ++now);
      if (action.op == Op::backward || action.op == Op::backward_weight) --now;
    }
  }
  return most;
}

Measured measure(const std::string& name, int p, int v, int m, const Times& times,
                 const LoweringOptions& options = {}, Recompute recompute = Recompute::none) {
  const Schedule& schedule = find_schedule(name);
  ScheduleRequest request = request_of(schedule, p, v, m);
  const CostTable costs = costs_of(p, v, times);
  request.costs = &costs;
  request.recompute.assign(request.placement.ranks.size(), recompute);
  const ScheduleProgram program = schedule.generate(request);
  const LoweredProgram lowered = lower(program, options);
  REQUIRE(check(lowered).accepted());
  Timeline timeline;
  const Simulation simulation = simulate(lowered, costs, &timeline);
  const double work = m * times.all() + recomputed_share(recompute, 1, m) * m * times.f;
  Measured measured{.bubble = simulation.makespan.value - work, .kept = most_kept(program)};
  std::vector<double> first(static_cast<std::size_t>(p), simulation.makespan.value);
  std::vector<double> last(static_cast<std::size_t>(p), 0);
  for (const Event& event : timeline.events) {
    if (!is_compute(event.action.op)) continue;
    const std::size_t r = event.rank.index();
    first[r] = std::min(first[r], event.begin.value);
    last[r] = std::max(last[r], event.end.value);
  }
  for (std::size_t r = 0; r < first.size(); ++r) {
    measured.span = std::max(measured.span, last[r] - first[r] - work);
  }
  return measured;
}

template <class Visit>
void each_case(const std::vector<int>& ranks, const std::vector<int>& per_rank, const Visit& visit) {
  for (const int p : ranks) {
    for (const int m : per_rank) {
      for (const Times& times : kTimes) {
        CAPTURE(p, m, times.f, times.i, times.w);
        visit(p, m * p, times);
      }
    }
  }
}

}  // namespace

TEST_CASE("fill-drain and 1F1B idle (p - 1)(F + B)", "[formulas]") {
  for (const int m : {1, 2, 3, 5, 8, 16}) {
    for (int p = 1; p <= 8; ++p) {
      for (const Times& times : kTimes) {
        CAPTURE(p, m, times.f, times.i, times.w);
        const Measured fill_drain = measure("fill_drain", p, 1, m, times);
        CHECK(fill_drain.bubble == (p - 1) * times.all());
        CHECK(fill_drain.kept == m);
        const Measured one_f_one_b = measure("1f1b", p, 1, m, times);
        CHECK(one_f_one_b.bubble == (p - 1) * times.all());
        CHECK(one_f_one_b.kept == std::min(m, p));
      }
    }
  }
}

TEST_CASE(
    "recomputation takes a forward per micro-batch and nothing more: it goes on while gradients are awaited",
    "[formulas]") {
  for (const Recompute recompute : {Recompute::all, Recompute::all_but_last}) {
    for (const int m : {1, 2, 3, 5, 8, 16}) {
      for (int p = 1; p <= 8; ++p) {
        for (const Times& times : kTimes) {
          CAPTURE(enum_name(recompute), p, m, times.f, times.i, times.w);
          CHECK(measure("fill_drain", p, 1, m, times, {}, recompute).bubble == (p - 1) * times.all());
          CHECK(measure("1f1b", p, 1, m, times, {}, recompute).bubble == (p - 1) * times.all());
        }
      }
    }
  }
}

TEST_CASE("recomputed, a stage keeps the inputs of what is in flight and one micro-batch's activations",
          "[formulas]") {
  constexpr Bytes kInput{1};
  constexpr Bytes kActivations{1000};
  for (const int m : {1, 2, 3, 8}) {
    for (int p = 1; p <= 5; ++p) {
      CAPTURE(p, m);
      CostTable costs = costs_of(p, 1, {});
      costs.loss = Bytes{};
      for (StageCosts& stage : costs.stages) stage.kept_for_input = kActivations;
      costs.stages[0].input = kInput;
      const auto kept = [&](const char* name, Recompute recompute) {
        ScheduleRequest request = request_of(find_schedule(name), p, 1, m);
        request.recompute.assign(request.placement.ranks.size(), recompute);
        const auto program = lower(find_schedule(name).generate(request));
        return prove(program, &costs).memory[0].peak - kInput * kReadAhead;
      };
      const int in_flight = std::min(m, p);
      CHECK(kept("fill_drain", Recompute::none) == (kInput + kActivations) * m);
      CHECK(kept("fill_drain", Recompute::all) == kInput * m + kActivations);
      CHECK(kept("fill_drain", Recompute::all_but_last) == kInput * m + kActivations * std::min(m, 2));
      CHECK(kept("1f1b", Recompute::none) == (kInput + kActivations) * in_flight);
      CHECK(kept("1f1b", Recompute::all) == kInput * in_flight + kActivations);
    }
  }
}

TEST_CASE("interleaved schedules idle (p - 1)(F + B) / v where m is a multiple of p", "[formulas]") {
  each_case({1, 2, 3, 4, 6}, {1, 2, 4}, [](int p, int m, const Times& times) {
    for (const int v : {1, 2, 4}) {
      CAPTURE(v);
      const Measured interleaved = measure("interleaved_1f1b", p, v, m, times);
      CHECK(interleaved.bubble == (p - 1) * times.all() / v);
      CHECK(interleaved.kept == std::min(m * v, v == 1 ? p : p * v + p - 1));
      // A gradient comes round to a rank that is still at its later stage's backwards: it needs a slot
      // meanwhile. See docs/design/schedule_orders.md.
      const Measured breadth_first = measure("looped_bfs", p, v, m, times);
      CHECK(breadth_first.bubble == (p - 1) * times.all() / v);
      CHECK(breadth_first.kept == m * v);
    }
  });
}

TEST_CASE("zb_h1 idles (p - 1)(F + I - W), and never less than the fill", "[formulas]") {
  each_case({1, 2, 3, 4, 6, 8}, {1, 2, 4}, [](int p, int m, const Times& times) {
    const Measured measured = measure("zb_h1", p, 1, m, times);
    CHECK(measured.bubble == (p - 1) * (times.f + std::max(0.0, times.i - times.w)));
    CHECK(measured.kept <= p);
  });
}

TEST_CASE("zb_h2 idles (p - 1)(F + I - 2W) between a rank's first and last action, from m = 2p - 1 on",
          "[formulas]") {
  each_case({1, 2, 3, 4, 6, 8}, {2, 3}, [](int p, int m, const Times& times) {
    const Measured measured = measure("zb_h2", p, 1, m, times);
    CHECK(measured.span == (p - 1) * std::max(0.0, times.f + times.i - 2 * times.w));
    // With a barrier the fill is lost as well.
    CHECK(measured.bubble == (p - 1) * (times.f + std::max(0.0, times.i - 2 * times.w)));
    CHECK(measured.kept <= 2 * p - 1);
  });
}

TEST_CASE("interleaved_zb idles (p - 1)(F + I - W) / v where m is a multiple of p, and less where it is p",
          "[formulas]") {
  each_case({1, 2, 3, 4, 6}, {1, 2, 4}, [](int p, int m, const Times& times) {
    for (const int v : {1, 2, 4}) {
      CAPTURE(v);
      const double formula = (p - 1) * (times.f + std::max(0.0, times.i - times.w)) / v;
      const Measured measured = measure("interleaved_zb", p, v, m, times);
      CHECK(measured.bubble <= formula);
      if (m > p) CHECK(measured.bubble == formula);
      CHECK(measured.kept <= p * v);
    }
  });
}

TEST_CASE(
    "interleaved_zb idles no more than (p - 1)F / v where F = I = W and m >= 2p is no multiple of p either",
    "[formulas]") {
  for (const int p : {2, 3, 4, 6}) {
    for (const int v : {2, 4}) {
      for (int m = 2 * p; m <= 4 * p; ++m) {
        CAPTURE(p, v, m);
        const Measured measured = measure("interleaved_zb", p, v, m, {1, 1, 1});
        CHECK(measured.bubble <= (p - 1.0) / v);
        CHECK(measured.kept <= p * v);
      }
    }
  }
}

TEST_CASE("zb_v idles only for the fill, (p - 1)F / 2, where F = I = W", "[formulas]") {
  for (const int p : {1, 2, 3, 4, 6, 8}) {
    for (const int m : {p, 2 * p, 2 * p + 1, 4 * p}) {
      CAPTURE(p, m);
      const Measured measured = measure("zb_v", p, 2, m, {1, 1, 1});
      CHECK(measured.bubble == (p - 1) * 0.5);
      CHECK(measured.kept <= 2 * p);
    }
  }
}

TEST_CASE("v_half and v_min idle at most 3/5 and 2/3 of what 1F1B does, where F = I = W and m >= 2p",
          "[formulas]") {
  for (const int p : {2, 3, 4, 5, 6, 7, 8}) {
    for (const int m : {2 * p, 2 * p + 1, 4 * p}) {
      CAPTURE(p, m);
      CHECK(measure("v_half", p, 2, m, {1, 1, 1}).bubble <= 0.6 * 3 * (p - 1));
      CHECK(measure("v_min", p, 2, m, {1, 1, 1}).bubble <= 2.0 / 3.0 * 3 * (p - 1));
    }
  }
}

TEST_CASE("V schedules keep p, (p + 2) / 2 and (p + 4) / 3 micro-batches' share, rounded down",
          "[formulas]") {
  for (int p = 1; p <= 9; ++p) {
    for (const int m : {1, 2, p, 3 * p + 1}) {
      for (const Times& times : {Times{1, 1, 1}, Times{2, 3, 1}, Times{1, 1, 2}}) {
        CAPTURE(p, m, times.f, times.i, times.w);
        // In pairs: two are a micro-batch's share.
        CHECK(measure("zb_v", p, 2, m, times).kept <= 2 * p);
        CHECK(measure("v_half", p, 2, m, times).kept <= 2 * ((p + 2) / 2));
        CHECK(measure("v_min", p, 2, m, times).kept <= 2 * ((p + 4) / 3));
      }
    }
  }
}

// The table of docs/design/schedule_orders.md is this test's output.
TEST_CASE("orders by the true costs against orders made for equal times", "[formulas]") {
  struct Row {
    const char* what;
    Times times;
    std::vector<double> stretch;  ///< of the stages on one pass down the ranks, from the first
  };
  const std::vector<Row> rows{{"1:1:1", {1, 1, 1}, {1, 1, 1, 1}},
                              {"2:3:1", {2, 3, 1}, {1, 1, 1, 1}},
                              {"1:2:1", {1, 2, 1}, {1, 1, 1, 1}},
                              {"1:1:2", {1, 1, 2}, {1, 1, 1, 1}},
                              {"1:1:1, last rank 1.25", {1, 1, 1}, {1, 1, 1, 1.25}},
                              {"2:3:1, first rank 0.75, third 1.25", {2, 3, 1}, {0.75, 1, 1.25, 1}}};
  const int p = 4;
  const int m = 16;
  double all_equal = 0;
  double all_true = 0;
  fmt::print("| schedule | F:I:W | made for equal times | made for the true ones |\n|---|---|---|---|\n");
  for (const char* name : {"zb_h1", "zb_h2", "interleaved_zb", "zb_v", "v_half", "v_min"}) {
    const Schedule& schedule = find_schedule(name);
    for (const Row& row : rows) {
      CAPTURE(name, row.what);
      const int v = schedule.virtual_stages;
      CostTable costs = costs_of(p, v, row.times);
      ScheduleRequest request = request_of(schedule, p, v, m);
      double busiest = 0;
      for (std::size_t s = 0; s < costs.stages.size(); ++s) {
        const double stretch = row.stretch[request.placement.ranks[s][0].index()];
        StageCosts& stage = costs.stages[s];
        for (Seconds* part : {&stage.forward, &stage.backward_input, &stage.backward_weight})
          *part = *part * stretch;
        busiest = std::max(busiest, stretch * m * row.times.all());
      }
      const auto over_ideal = [&] {
        const LoweredProgram lowered = lower(schedule.generate(request));
        REQUIRE(check(lowered).accepted());
        return simulate(lowered, costs).makespan.value / busiest;
      };
      const double for_equal = over_ideal();
      request.costs = &costs;
      const double for_true = over_ideal();
      fmt::print("| {} | {} | {:.3f} | {:.3f} |\n", name, row.what, for_equal, for_true);
      CHECK(for_true <= for_equal + 1e-12);
      all_equal += for_equal;
      all_true += for_true;
    }
  }
  CHECK(all_true < 0.98 * all_equal);
}
