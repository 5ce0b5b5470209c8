// The search for cuts against all cuts there are, and its bounds against what is simulated.

#include "partitioner/search/cut_search.h"

#include "partitioner/plan/compare_costs.h"
#include "partitioner/search/program_pricer.h"
#include "schedules/checker/checker.h"
#include "schedules/generators/registry.h"
#include "schedules/lowering/lowering.h"
#include "test/partitioner/every_cuts.h"
#include "test/partitioner/near.h"
#include "test/partitioner/random_layout.h"
#include "test/support/catch.h"

#include <rapidcheck.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>

namespace stagecraft {
namespace {

using namespace planning;
using test::near;

/// Schedules whose synchronous step is searched for by its cuts.
Schedule random_schedule() {
  return *rc::gen::suchThat(rc::gen::elementOf(schedules()),
                            [](const Schedule& s) { return s.synchronous && !s.searched; });
}

struct CutSearchCase {
  Schedule schedule;
  Cluster cluster;
  Measurement measurement;
  Network network;
  ChainCosts chain;
  Layout layout;
  PlacedCosts placed;
  ScheduleRequest request;
  ProgramFacts facts{};

  static CutSearchCase draw(int most_layers) {
    const Schedule schedule = random_schedule();
    const Cluster cluster = test::random_cluster();
    const int layers = *rc::gen::inRange(std::max(2, 2 * schedule.virtual_stages), most_layers + 1);
    return {schedule, cluster, test::random_measurement(layers),
            test::random_layout(schedule, cluster.devices(), layers)};
  }
  CutSearchCase(const Schedule& s, const Cluster& c, const Measurement& m, const Layout& l)
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
  CutSearchCase(const CutSearchCase&) = delete;
  CutSearchCase& operator=(const CutSearchCase&) = delete;

  [[nodiscard]] int layers() const { return chain.layers(); }
  [[nodiscard]] RecomputeSettings nothing_repeated() const {
    return RecomputeSettings(placed.placement().ranks.size(), Recompute::none);
  }
  [[nodiscard]] std::unique_ptr<ProgramPricer> pricer(std::optional<Bytes> capacity = {}) const {
    return std::make_unique<ProgramPricer>(
        schedule, request, placed, capacity,
        [this](int first, int last) { return stage_costs(measurement, first, last, 2); }, facts);
  }
  [[nodiscard]] StageSettings settings(std::optional<Recompute> asked = Recompute::none) const {
    return {placed.placement(), layers(), allowed_settings(asked), {}, !schedule.orders_by_time};
  }
  [[nodiscard]] OrderFreeBounds bounds(const ProgramPricer& pricer) const {
    return order_free_bounds(placed, request.group_sizes[0], pricer.split(), pricer.goes_on());
  }
};

/// CutPrice from nothing, as `simulate` does.
double simulated(const CutSearchCase& c, const std::vector<int>& cuts, Bytes* most = nullptr,
                 const RecomputeSettings& settings = {}) {
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
  request.recompute = settings;
  const LoweredProgram program = lower(c.schedule.generate(request));
  if (most != nullptr) {
    for (const MemoryProof& rank : prove(program, &costs).memory) *most = std::max(*most, rank.peak);
  }
  Simulator simulator(program);
  return (request.clip ? simulator.run(costs).makespan : simulator.cycle(costs)).value;
}

}  // namespace

TEST_CASE("no bound of a step is above a simulated one, for every schedule", "[cut_search]") {
  REQUIRE(rc::check("bounds", [] {
    const CutSearchCase c = CutSearchCase::draw(6);
    const auto pricer = c.pricer();
    const OrderFreeBounds bounds = c.bounds(*pricer);
    const OrderFreeBounds any =
        order_free_bounds(c.placed, c.request.group_sizes[0], true, pricer->goes_on());
    std::optional<StepBound> path;
    double closest = 0;
    double least = kInfinite;
    test::every_cuts(c.layers(), c.layout.stages(), [&](const std::vector<int>& cuts) {
      const auto settings = *rc::gen::container<RecomputeSettings>(
          cuts.size() + 1, rc::gen::element(Recompute::none, Recompute::all, Recompute::all_but_last));
      const double step = simulated(c, cuts, nullptr, settings);
      least = std::min(least, step);
      const auto holds = [&](const StepBound& bound) {
        const double value = c.placed.value(bound, cuts, settings);
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
      if (path) holds(*path);  // of other cuts and settings
      RC_ASSERT(near(pricer->seconds(cuts, settings), step));
      path = pricer->critical_path();
    });
    StageSettings settings = c.settings();
    const CutSearch search(c.placed, bounds, c.layers(), settings);
    RC_ASSERT(search.first_bound() <= least * (1 + 1e-9));
    RC_CLASSIFY(closest > 0.95, "close");
  }));
}

TEST_CASE("the cuts found are the best of all, and proved to be", "[cut_search]") {
  REQUIRE(rc::check("against all cuts", [] {
    const CutSearchCase c = CutSearchCase::draw(7);
    double least = kInfinite;
    test::every_cuts(c.layers(), c.layout.stages(),
                     [&](const std::vector<int>& cuts) { least = std::min(least, simulated(c, cuts)); });
    const auto pricer = c.pricer();
    StageSettings settings = c.settings();
    CutSearch search(c.placed, c.bounds(*pricer), c.layers(), settings);
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
    const CutSearchCase c = CutSearchCase::draw(6);
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
    const auto pricer = c.pricer(capacity);
    StageSettings settings = c.settings();
    CutSearch search(c.placed, c.bounds(*pricer), c.layers(), settings);
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

namespace {

/// All choices for the stages in which those of a rank are alike.
void every_settings(const Placement& placement, const std::function<void(const RecomputeSettings&)>& visit) {
  RecomputeSettings settings(placement.ranks.size(), Recompute::none);
  const std::function<void(std::size_t)> choose = [&](std::size_t stage) {
    if (stage == settings.size()) return visit(settings);
    const std::size_t same = [&] {
      std::size_t s = 0;
      while (placement.ranks[s] != placement.ranks[stage]) ++s;
      return s;
    }();
    if (same < stage) {
      settings[stage] = settings[same];
      return choose(stage + 1);
    }
    for (const Recompute setting : allowed_settings(std::nullopt)) {
      settings[stage] = setting;
      choose(stage + 1);
    }
  };
  choose(0);
}

}  // namespace

TEST_CASE("what stages repeat is chosen with the cuts, the best of all choices that fit", "[cut_search]") {
  REQUIRE(rc::check("against all cuts and settings", [] {
    const CutSearchCase c = CutSearchCase::draw(5);
    RC_PRE(c.layout.stages() <= 4);
    std::vector<std::pair<Bytes, double>> all;
    test::every_cuts(c.layers(), c.layout.stages(), [&](const std::vector<int>& cuts) {
      every_settings(c.placed.placement(), [&](const RecomputeSettings& settings) {
        Bytes most;
        const double step = simulated(c, cuts, &most, settings);
        all.emplace_back(most, step);
      });
    });
    const Bytes capacity = std::min((*rc::gen::elementOf(all)).first, (*rc::gen::elementOf(all)).first);
    double least = kInfinite;
    for (const auto& [most, step] : all) {
      if (most <= capacity) least = std::min(least, step);
    }
    const auto pricer = c.pricer(capacity);
    StageSettings settings = c.settings(std::nullopt);
    CutSearch search(c.placed, c.bounds(*pricer), c.layers(), settings);
    const CutSearchResult found = search.run(*pricer, kInfinite, {});
    RC_ASSERT(found.complete);
    if (found.cuts) {
      Bytes most;
      RC_ASSERT(near(simulated(c, *found.cuts, &most, found.settings), found.seconds));
      RC_ASSERT(most <= capacity);
      RC_ASSERT(found.seconds >= least * (1 - 1e-9));
    }
    // An order that follows the costs changes whenever a stage repeats more, so it may be faster.
    if (!c.schedule.orders_by_time) {
      RC_ASSERT(found.cuts);
      RC_ASSERT(near(found.seconds, least));
      RC_ASSERT(near(found.bound, least));
    }
    RC_CLASSIFY(found.cuts && any_recompute(found.settings), "some stage repeats");
    RC_CLASSIFY(found.cuts && std::set(found.settings.begin(), found.settings.end()).size() > 1,
                "stages differ");
  }));
}

TEST_CASE("a search that must stop early says how far it may be from the best", "[cut_search]") {
  REQUIRE(rc::check("bounds", [] {
    const CutSearchCase c = CutSearchCase::draw(7);
    double least = kInfinite;
    test::every_cuts(c.layers(), c.layout.stages(),
                     [&](const std::vector<int>& cuts) { least = std::min(least, simulated(c, cuts)); });
    const auto pricer = c.pricer();
    StageSettings settings = c.settings();
    CutSearch search(c.placed, c.bounds(*pricer), c.layers(), settings);
    const CutSearchResult found = search.run(*pricer, kInfinite, {.work = *rc::gen::inRange(0, 20'000)});
    RC_ASSERT(found.bound <= least * (1 + 1e-9));
    if (found.complete) RC_ASSERT(near(found.bound, least));
    if (found.cuts) RC_ASSERT(found.seconds >= least * (1 - 1e-9));
    RC_CLASSIFY(!found.complete, "stopped");
  }));
}

}  // namespace stagecraft
