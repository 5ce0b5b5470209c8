// What is said where no plan fits, against all cuts with all recomputes of small chains.

#include "partitioner/search/carried_schedule.h"
#include "partitioner/search/plan_maker.h"
#include "partitioner/search/planner.h"
#include "schedules/generators/registry.h"
#include "test/partitioner/every_cuts.h"
#include "test/partitioner/random_profile.h"
#include "test/support/catch.h"

#include <fmt/format.h>
#include <rapidcheck.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <regex>
#include <string>
#include <vector>

namespace stagecraft {
namespace {

using namespace planning;

constexpr int kRuns = 40;
constexpr Bytes kNever{std::numeric_limits<std::int64_t>::max()};

/// Calls `visit` with all ways to give ranks one of the settings that the request allows.
void every_setting(const PlanRequest& request, const Placement& placement,
                   const std::function<void(const RecomputeSettings&)>& visit) {
  const std::vector<Recompute> allowed = allowed_settings(request.recompute);
  const std::vector<std::vector<StageId>> held = placement.stages_by_rank();
  RecomputeSettings settings(placement.ranks.size());
  const std::function<void(std::size_t)> set = [&](std::size_t rank) {
    if (rank == held.size()) return visit(settings);
    for (const Recompute setting : allowed) {
      for (const StageId stage : held[rank]) settings[stage.index()] = setting;
      set(rank + 1);
    }
  };
  set(0);
}

/// What the rank that needs most needs with the cuts and recomputes that need least; of a searched schedule the order
/// that runs one micro-batch at a time, which is what needs least.
Bytes least_of_all(const Profile& profile, Cluster cluster, const PlanRequest& request,
                   const Layout& layout) {
  cluster.memory.reset();
  const PlanMaker maker(profile, cluster, request);
  Bytes least = kNever;
  test::every_cuts(maker.layers(), layout.stages(), [&](const std::vector<int>& cuts) {
    every_setting(request, layout.placement(), [&](const RecomputeSettings& settings) {
      Plan plan = maker.plan_of(layout, cuts, settings);
      if (maker.schedule().searched) {
        plan.program = planned_orders(
            serial_schedule().generate(maker.schedule_request(layout, {request.micro_batches}, settings)));
      }
      least = std::min(least, maker.priced(layout, std::move(plan)).memory());
    });
  });
  return least;
}

/// Figures are in bytes.
std::optional<Bytes> figure(const std::string& text, const std::string& pattern) {
  std::smatch found;
  if (!std::regex_search(text, found, std::regex(pattern))) return std::nullopt;
  return Bytes{std::stoll(found[1].str())};
}

struct Said {
  int least = 0, no_less = 0, found = 0, proved = 0, open = 0;
};

/// `least`: of the layout that the reason is of.
void check_reason(const std::string& reason, Bytes least, Said& said) {
  RC_LOG() << reason << "\n";
  const auto needs = figure(reason, R"(needs? (\d+) B, )");
  if (reason.find("even with the cuts that need least memory") != std::string::npos) {
    RC_ASSERT(needs.has_value());
    RC_ASSERT(*needs == least);
    ++said.least;
  }
  if (const auto no_less = figure(reason, R"(no cuts need less than (\d+) B)")) {
    RC_ASSERT(*no_less <= least);
    RC_ASSERT(needs.has_value());
    RC_ASSERT(*needs >= least);
    ++said.no_less;
  }
}

struct Problem {
  Profile profile;
  Cluster cluster;
  PlanRequest request;
};

Problem problem(const Schedule& schedule) {
  Problem one;
  one.profile.optimizer_bytes_per_parameter_byte = 1;
  const bool chooses = *rc::gen::arbitrary<bool>();
  const int per_rank =
      schedule.searched ? *rc::gen::inRange(1, 3) : (schedule.placement == PlacementKind::straight ? 1 : 2);
  const int ranks = *rc::gen::inRange(per_rank == 1 ? 1 : 2, chooses || per_rank == 2 ? 3 : 4);
  const int layers = *rc::gen::inRange(ranks * per_rank, ranks * per_rank + (per_rank == 1 ? 4 : 2));
  Measurement measurement = test::random_measurement(layers);
  measurement.layers.back().output = Bytes{};
  measurement.layers.back().output_is_input = false;
  for (LayerProfile& layer : measurement.layers) {  // orders by time take times
    for (Timing* time : {&layer.forward, &layer.backward_input, &layer.backward_weight})
      time->median = time->median + Seconds{1};
  }
  one.profile.measurements = {measurement};
  one.cluster = flat_cluster("", ranks, {Seconds{0.1}, 1e3});
  one.request.schedule.name = schedule.name;
  one.request.micro_batches = ranks * *rc::gen::inRange(1, 3);
  one.request.stages = ranks * per_rank;
  one.request.virtual_stages = per_rank;
  if (chooses) one.request.recompute.reset();
  one.request.search.cut_work = 20'000'000;
  one.request.search.work = 2'000;
  return one;
}

std::vector<Layout> layouts(const Schedule& schedule, int ranks, int per_rank) {
  std::vector<PlacementKind> kinds{schedule.placement};
  if (schedule.searched && per_rank == 2) kinds = {PlacementKind::v, PlacementKind::loop};
  std::vector<Layout> all;
  for (const PlacementKind kind : kinds) all.push_back(straight_layout(kind, per_rank, ranks));
  return all;
}

}  // namespace

TEST_CASE("of what fits none is refused, and what a refusal says is true", "[refusals]") {
  std::map<std::string, Said> said;
  int runs = 0;
  REQUIRE(rc::check("all schedules", [&] {
    if (++runs > kRuns) return;  // seconds
    const Schedule& schedule = *rc::gen::elementOf(schedules());
    Problem one = problem(schedule);
    const int ranks = one.cluster.devices();
    Bytes least = kNever;
    std::vector<Bytes> of_layout;
    try {
      for (const Layout& layout : layouts(schedule, ranks, *one.request.virtual_stages)) {
        of_layout.push_back(least_of_all(one.profile, one.cluster, one.request, layout));
        least = std::min(least, of_layout.back());
      }
    } catch (const InputError&) {  // too few micro-batches for the schedule
      RC_DISCARD("not for this schedule");
    }
    const Bytes most = std::ranges::max(of_layout);
    const std::int64_t lower = *rc::gen::element(least.value - 1, least.value * 9 / 10, least.value / 2);
    for (const std::int64_t cap : {least.value, lower}) {
      if (cap <= 0) continue;
      RC_LOG() << "cap " << cap << ", least " << least.value << "\n";
      one.cluster.memory = Bytes{cap};
      try {
        const PlanResult result = make_plan(one.profile, one.cluster, one.request);
        RC_ASSERT(result.best.memory().value <= cap);
        RC_ASSERT(Bytes{cap} >= least);
      } catch (const NoPlanFits& error) {
        RC_ASSERT(Bytes{cap} < least);
        // Where the order is the schedule's and a rank has one stage, nothing is left open.
        if (!schedule.orders_by_time && *one.request.virtual_stages == 1) RC_ASSERT(error.proved());
        ++(error.proved() ? said[schedule.name].proved : said[schedule.name].open);
        for (const std::string& reason : error.reasons()) {
          // Which of several layouts it is of, a reason does not say.
          if (of_layout.size() == 1) check_reason(reason, most, said[schedule.name]);
          if (const auto no_less = figure(reason, R"(no cuts need less than (\d+) B)"))
            RC_ASSERT(*no_less <= most);
        }
      }
    }
  }));
  Said all;
  for (const auto& [name, of] : said) {
    fmt::print("{}: {} refusals proved, {} not; {} times the least, {} times a bound of it\n", name,
               of.proved, of.open, of.least, of.no_less);
    all.proved += of.proved;
    all.least += of.least;
    all.no_less += of.no_less;
  }
  CHECK(all.proved > 10);
  CHECK(all.least + all.no_less > 5);
}

TEST_CASE("numbers of stages that are said not to fit do not", "[refusals]") {
  int proved = 0, open = 0;
  REQUIRE(rc::check("beside a plan that fits", [&] {
    const Schedule& schedule = *rc::gen::elementOf(schedules());
    if (schedule.placement != PlacementKind::straight) RC_DISCARD("loops have no text of it");
    Problem one = problem(schedule);
    if (*one.request.virtual_stages != 1) RC_DISCARD("likewise");
    const int ranks = one.cluster.devices();
    std::vector<Bytes> least{kNever};
    for (int stages = 1; stages <= ranks; ++stages) {
      try {
        least.push_back(least_of_all(one.profile, one.cluster, one.request,
                                     straight_layout(schedule.placement, 1, stages)));
      } catch (const InputError&) {
        least.push_back(kNever);
      }
    }
    one.request.stages.reset();
    one.request.virtual_stages.reset();
    if (schedule.searched) one.request.virtual_stages = 1;
    one.cluster.memory = std::ranges::min(least);
    const PlanResult result = make_plan(one.profile, one.cluster, one.request);
    RC_ASSERT(result.best.memory() <= *one.cluster.memory);
    const auto of = [&](const std::string& reason) {
      RC_LOG() << reason << "\n";
      return least[static_cast<std::size_t>(std::stoi(reason))];
    };
    Said ignored;
    for (const std::string& reason : result.infeasible) {
      RC_ASSERT(of(reason) > *one.cluster.memory);
      check_reason(reason, of(reason), ignored);
      ++proved;
    }
    for (const std::string& reason : result.not_found) {
      check_reason(reason, of(reason), ignored);
      ++open;
    }
  }));
  fmt::print("{} proved, {} not\n", proved, open);
  CHECK(proved > 10);
}

}  // namespace stagecraft
