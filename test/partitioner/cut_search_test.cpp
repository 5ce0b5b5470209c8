// The search for cuts against all cuts there are, and its bounds against what is simulated.

#include "partitioner/planning/cut_search.h"

#include "partitioner/planning/program_pricer.h"
#include "schedules/checker.h"
#include "schedules/lowering.h"
#include "test/partitioner/every_cuts.h"
#include "test/partitioner/random_layout.h"
#include "test/support/catch.h"

#include <rapidcheck.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <string>

namespace stagecraft {
namespace {

using namespace planning;

constexpr double kInfinite = std::numeric_limits<double>::infinity();

/// Schedules whose synchronous step is searched for by its cuts.
Schedule random_schedule() {
  return *rc::gen::suchThat(rc::gen::elementOf(schedules()),
                            [](const Schedule& s) { return s.synchronous && !s.searched; });
}

struct Case {
  Schedule schedule;
  Cluster cluster;
  Measurement measurement;
  Network network;
  ChainCosts chain;
  Layout layout;
  PlacedCosts placed;
  ScheduleRequest request;

  static Case draw(int most_layers) {
    const Schedule schedule = random_schedule();
    const Cluster cluster = test::random_cluster();
    const int layers = *rc::gen::inRange(std::max(2, 2 * schedule.virtual_stages), most_layers + 1);
    return {schedule, cluster, test::random_measurement(layers),
            test::random_layout(schedule, cluster.devices(), layers)};
  }
  Case(const Schedule& s, const Cluster& c, const Measurement& m, const Layout& l)
      : schedule(s),
        cluster(c),
        measurement(m),
        network(c.network()),
        chain(measurement),
        layout(l),
        placed(chain, network, layout.placement(), cluster.speed) {
    request.placement = layout.placement();
    request.group_sizes = {*rc::gen::inRange(1, 9)};
    request.clip = *rc::gen::arbitrary<bool>();
  }
  Case(const Case&) = delete;
  Case& operator=(const Case&) = delete;

  [[nodiscard]] int layers() const { return chain.layers(); }
  [[nodiscard]] std::unique_ptr<ProgramPricer> pricer(std::optional<Bytes> capacity = {},
                                                      ProgramPricer::Refused refused = {}) const {
    return std::make_unique<ProgramPricer>(
        schedule, request, placed, cluster.speed, capacity,
        [this](int first, int last) { return stage_costs(measurement, first, last, 2); },
        refused ? std::move(refused) : [](StageId, int, int) {});
  }
};

/// Priced from nothing, as `simulate` does.
double simulated(const Case& c, const std::vector<int>& cuts, Bytes* most = nullptr) {
  CostTable costs;
  costs.network = c.network;
  costs.speed = c.cluster.speed;
  for (int s = 0; s < c.layout.stages(); ++s) {
    const int first = s == 0 ? 0 : cuts[static_cast<std::size_t>(s - 1)];
    const int last = s + 1 == c.layout.stages() ? c.layers() : cuts[static_cast<std::size_t>(s)];
    costs.stages.push_back(stage_costs(c.measurement, first, last, 2));
  }
  ScheduleRequest request = c.request;
  request.costs = &costs;
  const LoweredProgram program = lower(c.schedule.generate(request));
  if (most != nullptr) {
    for (const MemoryProof& rank : prove(program, &costs).memory) *most = std::max(*most, rank.peak);
  }
  return simulate(program, costs).makespan.value;
}

bool near(double a, double b) { return std::abs(a - b) <= 1e-9 * std::max(1.0, std::max(a, b)); }

}  // namespace

TEST_CASE("no bound of a step is above a simulated one, for every schedule", "[cut_search]") {
  REQUIRE(rc::check("bounds", [] {
    const Case c = Case::draw(6);
    const auto pricer = c.pricer();
    const OrderFreeBounds bounds = order_free_bounds(c.placed, c.request.group_sizes[0], pricer->split());
    const OrderFreeBounds any = order_free_bounds(c.placed, c.request.group_sizes[0], true);
    std::optional<StepBound> path;
    double closest = 0;
    double least = kInfinite;
    test::every_cuts(c.layers(), c.layout.stages(), [&](const std::vector<int>& cuts) {
      const double step = simulated(c, cuts);
      least = std::min(least, step);
      const auto holds = [&](const StepBound& bound) {
        const double value = c.placed.value(bound, cuts);
        closest = std::max(closest, step > 0 ? value / step : 0);
        RC_ASSERT(value <= step * (1 + 1e-9));
      };
      holds(bounds.chain);
      holds(any.chain);
      for (const OrderFreeBounds::Work& work : bounds.work) {
        holds(work.to_tail);
        holds(work.to_end);
      }
      for (const OrderFreeBounds::Work& work : any.work) {
        holds(work.to_tail);
        holds(work.to_end);
      }
      if (path) holds(*path);  // of other cuts
      RC_ASSERT(near(pricer->seconds(cuts), step));
      path = pricer->critical_path();
    });
    const CutSearch::Fits all;
    const CutSearch search(c.placed, bounds, c.layers(), all);
    RC_ASSERT(search.first_bound() <= least * (1 + 1e-9));
    RC_CLASSIFY(closest > 0.95, "close");
  }));
}

TEST_CASE("the cuts found are the best of all, and proved to be", "[cut_search]") {
  REQUIRE(rc::check("against all cuts", [] {
    const Case c = Case::draw(7);
    double least = kInfinite;
    test::every_cuts(c.layers(), c.layout.stages(),
                     [&](const std::vector<int>& cuts) { least = std::min(least, simulated(c, cuts)); });
    const auto pricer = c.pricer();
    const CutSearch::Fits all;
    CutSearch search(c.placed, order_free_bounds(c.placed, c.request.group_sizes[0], pricer->split()),
                     c.layers(), all);
    const CutSearchResult found = search.run(*pricer, kInfinite, {});
    RC_ASSERT(found.complete);
    RC_ASSERT(found.cuts);
    RC_ASSERT(near(found.seconds, least));
    RC_ASSERT(near(simulated(c, *found.cuts), least));
    RC_ASSERT(near(found.bound, least));
    RC_CLASSIFY(c.layout.replicated(), "replicated");
    RC_CLASSIFY(!c.cluster.speed.empty(), "speeds");
  }));
}

TEST_CASE("with a cap the cuts found are the best of those that the proof accepts", "[cut_search]") {
  REQUIRE(rc::check("against all cuts", [] {
    const Case c = Case::draw(6);
    std::vector<std::pair<Bytes, double>> all;
    test::every_cuts(c.layers(), c.layout.stages(), [&](const std::vector<int>& cuts) {
      Bytes most;
      const double step = simulated(c, cuts, &most);
      all.emplace_back(most, step);
    });
    // The cap lets some of them through.
    const Bytes capacity = (*rc::gen::elementOf(all)).first;
    double least = kInfinite;
    for (const auto& [most, step] : all) {
      if (most <= capacity) least = std::min(least, step);
    }
    std::vector<std::tuple<int, int, int>> refused;
    const auto pricer = c.pricer(capacity, [&](StageId stage, int first, int last) {
      refused.emplace_back(stage.value, first, last);
    });
    const CutSearch::Fits possible = [&](StageId stage, int first, int last) {
      return std::find(refused.begin(), refused.end(), std::tuple(stage.value, first, last)) == refused.end();
    };
    CutSearch search(c.placed, order_free_bounds(c.placed, c.request.group_sizes[0], pricer->split()),
                     c.layers(), possible);
    const CutSearchResult found = search.run(*pricer, kInfinite, {});
    RC_ASSERT(found.cuts);
    RC_ASSERT(near(found.seconds, least));
    RC_ASSERT(near(simulated(c, *found.cuts), least));
    RC_CLASSIFY(
        all.size() > 1 && least > std::min_element(all.begin(), all.end(),
                                                   [](auto& a, auto& b) { return a.second < b.second; })
                                      ->second,
        "the cap costs time");
  }));
}

TEST_CASE("a search that must stop early says how far it may be from the best", "[cut_search]") {
  REQUIRE(rc::check("bounds", [] {
    const Case c = Case::draw(7);
    double least = kInfinite;
    test::every_cuts(c.layers(), c.layout.stages(),
                     [&](const std::vector<int>& cuts) { least = std::min(least, simulated(c, cuts)); });
    const auto pricer = c.pricer();
    const CutSearch::Fits all;
    CutSearch search(c.placed, order_free_bounds(c.placed, c.request.group_sizes[0], pricer->split()),
                     c.layers(), all);
    const CutSearchResult found = search.run(*pricer, kInfinite, {.work = *rc::gen::inRange(0, 20'000)});
    RC_ASSERT(found.bound <= least * (1 + 1e-9));
    if (found.complete) RC_ASSERT(near(found.bound, least));
    if (found.cuts) RC_ASSERT(found.seconds >= least * (1 - 1e-9));
    RC_CLASSIFY(!found.complete, "stopped");
  }));
}

}  // namespace stagecraft
