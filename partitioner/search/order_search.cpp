#include "partitioner/search/order_search.h"

#include "base/table.h"
#include "partitioner/plan/compare_costs.h"
#include "partitioner/search/carried_schedule.h"
#include "partitioner/search/halving.h"
#include "schedules/generators/library.h"
#include "schedules/generators/registry.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

namespace stagecraft::planning {
namespace {

/// Times that cuts are searched for with the order found, and an order for these, while that helps.
constexpr int kOrderRounds = 3;
/// What another schedule may be behind so that a layout with replicas is searched, and so that its cuts are searched for
/// with the work that is left.
constexpr double kWithinReach = 1.03, kWithinFarReach = 1.1;
/// What a search for cuts and an order gains over cuts soon found and another schedule, hardly ever more; and of the many
/// layouts with replicas those that are near.
constexpr double kMostGained = 1.5, kMostGainedOfMany = 1.25;
/// Of what other schedules' cuts get, a part comes first, to see which are worth the rest.
constexpr int kPartAtFirst = 4;
/// All first estimates get one of so many parts of the work, and each of them no more than this.
constexpr std::size_t kEstimates = 16;
constexpr std::int64_t kMostOfEstimate = 10'000'000;
/// Of the work on cuts, for each of these searches.
constexpr std::int64_t kCarriedShare = 16;

class OrderSearch {
 public:
  OrderSearch(PlanningRun& run, const Layout& layout) : run_(run), layout_(layout) {}

  /// `estimate` is this layout's.
  [[nodiscard]] PlanMaker::Balanced search(double estimate) {
    if (run_.request.search.first_that_fits) return least(/*proved=*/false);
    StageSettings settings = run_.maker.settings(layout_, run_.schedule, true);
    if (const auto only = only_cuts()) {
      const Stages stages{*only, settings.least(*only)};
      if (stages.settings) return ordered(stages, settings, nullptr).made;
      return {{}, run_.maker.misses(run_.maker.least(layout_, *only).plan, only_name())};
    }
    const auto even = run_.maker.even_cuts(layout_, settings);
    if (!even) return least(/*proved=*/true);
    const bool alone = layout_.stages_per_rank == 1;
    const Stages evenly{*even, settings.least(*even)};
    // What no cuts and no order make better than what is known needs no more than to be told of.
    const bool hopeless = estimate > kMostGained * run_.best() || !clearly_less(bound(settings), run_.best());
    if (!alone && evenly.settings && hopeless) return ordered(evenly, settings, nullptr).made;
    const Stages others = stages_of_the_others({*even}, kInfinite);
    Ordered best;
    // What other schedules need is no measure of what an order made for the cap does.
    if (others.settings) take_better(best, refined(others, settings, nullptr));
    if (evenly.settings && !fits_with_the_fastest(*even))
      take_better(best, refined(evenly, settings, nullptr));
    if (best.made.candidate) return std::move(best.made);
    const Schedule serial = serial_schedule();
    if (const auto least = stages_of(serial, kInfinite, {*even})) {
      const Ordered one_by_one{.made = {},
                               .program = serial.generate(run_.maker.schedule_request(
                                   layout_, {run_.request.micro_batches}, *least->settings)),
                               .from = "one micro-batch at a time"};
      take_better(best, refined(*least, settings, &one_by_one));
    }
    return best.made.candidate ? std::move(best.made) : least(run_.maker.none_can_fit(layout_));
  }

  /// What no order can be below; infinite where nothing fits.
  [[nodiscard]] double bound() const {
    if (run_.maker.impossible_on(layout_.positions())) return kInfinite;
    StageSettings settings = run_.maker.settings(layout_, run_.schedule, true);
    return bound(settings);
  }

  /// What another schedule takes with cuts soon found, were there no cap; infinite where there are none. Even cuts alone may
  /// be far from the best where transfers take long, or layers are few. One of so many estimates.
  [[nodiscard]] double estimate(std::size_t estimates) const {
    StageSettings settings = run_.maker.settings(layout_, run_.schedule, /*capped=*/false);
    const auto even = run_.maker.even_cuts(layout_, settings);
    double least = kInfinite;
    const std::vector<const Schedule*> others = even ? this->others() : std::vector<const Schedule*>();
    const std::size_t searches = kEstimates * estimates * std::max<std::size_t>(others.size(), 1);
    for (const Schedule* schedule : others) {
      try {
        CutSearchBudget share = run_.share(searches, static_cast<int>(searches));
        share.work = std::min(share.work, kMostOfEstimate);
        const CutSearchResult found = run_.search_cuts(layout_, *schedule, least, share, {*even},
                                                       /*capped=*/false, /*by_replica=*/true);
        run_.budget.take(found.work);
        if (found.cuts) least = found.seconds;
      } catch (const InputError&) {  // not for this placement
      }
    }
    return least;
  }

  /// As search(), where some schedule of the layout comes near the best plan; otherwise without a reason.
  [[nodiscard]] PlanMaker::Balanced search_within_reach() {
    if (only_cuts()) return search(0);
    StageSettings settings = run_.maker.settings(layout_, run_.schedule, true);
    const std::vector<std::vector<int>> likely = run_.maker.likely_cuts(layout_);
    if (likely.empty()) return {};
    const Stages others = stages_of_the_others(likely, kWithinReach * run_.best());
    return others.settings ? refined(others, settings, nullptr).made : PlanMaker::Balanced{};
  }

  /// With cuts that some schedule of the layout is fast with.
  [[nodiscard]] PlanMaker::Balanced with(std::vector<int> cuts, RecomputeSettings repeats) {
    StageSettings settings = run_.maker.settings(layout_, run_.schedule, true);
    return refined({std::move(cuts), std::move(repeats)}, settings, nullptr).made;
  }

 private:
  /// The cuts asked for, or those of a layout that can have no others.
  [[nodiscard]] std::optional<std::vector<int>> only_cuts() const {
    std::vector<int> cuts = run_.request.cuts;
    if (!cuts.empty() || layout_.stages() == 1) return cuts;
    if (layout_.stages() != run_.maker.cuttable()) return std::nullopt;
    cuts.resize(to_size(layout_.stages()) - 1);
    std::iota(cuts.begin(), cuts.end(), 1);
    return cuts;
  }
  [[nodiscard]] const char* only_name() const {
    return run_.request.cuts.empty() ? "with one layer per stage" : "with the cuts asked for";
  }

  /// Cuts, and what their stages repeat.
  struct Stages {
    std::vector<int> cuts;
    std::optional<RecomputeSettings> settings;
  };
  struct Ordered {
    PlanMaker::Balanced made;
    ScheduleProgram program;
    std::string from;
  };

  /// The schedules that are made for the layout's kind.
  [[nodiscard]] std::vector<const Schedule*> others() const {
    std::vector<const Schedule*> all;
    for (const Schedule& schedule : schedules()) {
      if (schedule.synchronous && !schedule.searched && schedule.placement == layout_.kind)
        all.push_back(&schedule);
    }
    return all;
  }

  /// What runs one micro-batch at a time, or what it misses; `proved`: nothing fits.
  [[nodiscard]] PlanMaker::Balanced least(bool proved) const {
    PlanCandidate least = run_.maker.least(layout_, run_.request.cuts);
    if (run_.maker.over_cap(least.plan).empty()) return {std::move(least), {}};
    return {{}, run_.maker.misses_least(layout_, least, proved), proved};
  }

  /// No step of the layout is below it.
  [[nodiscard]] double bound(StageSettings& settings) const {
    const PlacedCosts placed(run_.chain, run_.network, layout_.placement(), run_.cluster.speed);
    const OrderFreeBounds bounds =
        order_free_bounds(placed, run_.request.micro_batches, /*split=*/true,
                          run_.goes_on(placed.placement()), run_.gradient_from() > 0);
    return CutSearch(placed, bounds, run_.maker.cuttable(), settings).first_bound();
  }

  static void take_better(Ordered& best, Ordered other) {
    const auto step = [](const Ordered& one) {
      return one.made.candidate ? one.made.candidate->step().value : kInfinite;
    };
    const bool none = best.made.reason.empty() && !best.made.candidate;
    if (none || step(other) < step(best)) best = std::move(other);
  }

  /// An order for the cuts, then cuts for the order, while that helps.
  [[nodiscard]] Ordered refined(Stages stages, StageSettings& settings, const Ordered* known) {
    Ordered best = ordered(stages, settings, known);
    for (int round = 0; round < kOrderRounds; ++round) {
      const double step = best.made.candidate ? best.made.candidate->step().value : kInfinite;
      const auto better = stages_of(carried_schedule(best.program), step, {stages.cuts});
      if (!better) break;
      stages = *better;
      Ordered next = ordered(stages, settings, &best);
      if (!next.made.candidate || !clearly_less(next.made.candidate->step().value, step)) break;
      best = std::move(next);
    }
    return best;
  }

  /// The cuts with which some other schedule of the layout's placement is fastest, so that whatever is searched
  /// for begins no worse than there; the first of `seeds`, without settings, if none fits and is below `least`.
  [[nodiscard]] Stages stages_of_the_others(const std::vector<std::vector<int>>& seeds, double least) {
    Stages stages{seeds.front(), {}};
    const std::vector<const Schedule*> others = this->others();
    fastest_ = nullptr;
    // A straight layout's searches soon end; of others each takes what it gets.
    const std::size_t count = layout_.stages_per_rank == 1 ? schedules().size() : others.size();
    const bool by_replica = layout_.replicated();  // cuts are chosen by it, not plans
    for (const Schedule* schedule : others) {
      try {
        const std::size_t searches = (run_.progress.placements - run_.progress.tried) * count;
        CutSearchBudget share = run_.share(2 * searches * kPartAtFirst, kPartAtFirst * kParts);
        share.goes_on = true;
        CutSearchResult found = run_.search_cuts(layout_, *schedule, least, share, seeds, true, by_replica);
        run_.budget.take(found.work);
        const bool open = !found.complete || run_.request.replicate;
        if (auto met = found.best_met(); open && met.seconds < kInfinite)
          run_.of_others.push_back({layout_, schedule, std::move(met), {1, found.descended}});
        if (!found.cuts) continue;
        least = found.seconds;
        fastest_ = schedule;
        stages = {std::move(*found.cuts), std::move(found.settings)};
      } catch (const InputError&) {  // not for this placement
      }
    }
    return stages;
  }
  [[nodiscard]] bool fits_with_the_fastest(const std::vector<int>& cuts) const {
    return fastest_ != nullptr &&
           run_.search_cuts(layout_, *fastest_, kInfinite, {.work = 0}, {cuts}, true).cuts.has_value();
  }

  /// The best for an order as it stands, if any are below `to_beat`.
  [[nodiscard]] std::optional<Stages> stages_of(const Schedule& schedule, double to_beat,
                                                const std::vector<std::vector<int>>& seeds) {
    CutSearchBudget share = run_.share(run_.progress.placements - run_.progress.tried);
    share.work = std::min(share.work, run_.request.search.cut_work / kCarriedShare);
    CutSearchResult found = run_.search_cuts(layout_, schedule, to_beat, share, seeds, true);
    run_.budget.take(found.work);
    if (!found.cuts) return std::nullopt;
    return Stages{std::move(*found.cuts), std::move(found.settings)};
  }

  /// With an order for them, no worse than that of `known`, if that is given.
  [[nodiscard]] Ordered ordered(const Stages& stages, StageSettings& settings, const Ordered* known) {
    Ordered result;
    PlanCandidate candidate;
    bool impossible = true;
    for (auto setting = stages.settings; setting;) {
      Plan plan = run_.maker.plan_of(layout_, stages.cuts, *setting);
      Synthesis found = synthesis(plan, known);
      plan.program = planned_orders(found.program);
      candidate = run_.maker.priced(layout_, std::move(plan));
      candidate.search = SearchResult{
          .from = found.from, .orders = found.orders, .gap = found.gap(), .optimal = found.optimal()};
      if (found.impossible) candidate.search->impossible_below = found.impossible->needs;
      impossible = impossible && found.impossible.has_value();
      result.program = std::move(found.program);
      result.from = found.from;
      const std::vector<Rank> over = run_.maker.over_cap(candidate.plan);
      if (over.empty()) {
        result.made.candidate = std::move(candidate);
        return result;
      }
      setting = settings.after_refusal(stages.cuts, *setting, over);
    }
    // Other cuts may fit, where there are others; and of several settings not all together were tried.
    const bool only = only_cuts().has_value();
    result.made.proved = only && impossible && !run_.maker.chooses_recompute();
    result.made.reason = run_.maker.misses(
        candidate.plan,
        only ? only_name() : fmt::format("{}, with the cuts that came nearest", layout_.name()));
    if (result.made.proved) {
      result.made.reason += fmt::format("; no order of these stages needs less than {}",
                                        format_bytes(*candidate.search->impossible_below));
    }
    return result;
  }

  /// The time there is left goes in equal parts to the placements left.
  [[nodiscard]] Synthesis synthesis(const Plan& plan, const Ordered* known) {
    run_.tell_progress();
    const SearchBudget& budget = run_.request.search;
    SynthesisRequest request{.placement = plan.placement(),
                             .micro_batches = plan.micro_batches,
                             .clip = plan.schedule.agree_norm,
                             .costs = &*plan.costs,
                             .capacity = run_.maker.capacity(),
                             .recompute = plan.recompute(),
                             .gradient_from = plan.gradient_from,
                             .also_load = plan.also_load(),
                             .ties = plan.ties,
                             .budget = {.work = budget.work, .to_beat = run_.progress.best}};
    if (known != nullptr) {
      ScheduleRequest again = run_.maker.schedule_request(layout_, {plan.micro_batches}, plan.recompute());
      request.library.push_back({known->from, carried_schedule(known->program).generate(again)});
    }
    std::optional<Seconds> until;
    if (budget.time_limit) {
      const auto placements = static_cast<double>(run_.progress.placements - run_.progress.tried);
      until = run_.budget.spent() + run_.budget.left() / std::max(1.0, placements);
      request.budget.work = std::numeric_limits<std::int64_t>::max() / 4;
    }
    request.budget.go_on = [this, until](Seconds) {
      run_.tell_progress();
      return !until || run_.budget.spent() < *until;
    };
    return synthesize_over_schedules(std::move(request));
  }

  PlanningRun& run_;
  const Layout& layout_;
  const Schedule* fastest_ = nullptr;  // of the others, by stages_of_the_others()
};

}  // namespace

void search_orders(PlanningRun& run, const std::vector<Layout>& layouts) {
  struct Task {
    const Layout* layout;
    double estimate;
  };
  std::vector<Task> tasks;
  const bool chosen = run.request.search.first_that_fits || !run.request.cuts.empty() || layouts.size() == 1;
  for (const Layout& layout : layouts)
    tasks.push_back({&layout, chosen ? 0 : OrderSearch(run, layout).estimate(layouts.size())});
  std::ranges::stable_sort(tasks, {}, &Task::estimate);
  for (const auto& [layout, estimate] : tasks) {
    const bool late = run.request.search.time_limit && run.budget.over();
    if ((run.request.search.first_that_fits || late) && !run.candidates.empty()) break;
    try {
      run.keep(*layout, OrderSearch(run, *layout).search(estimate));
    } catch (const InputError& error) {  // not so many, say the schedules
      if (layouts.size() == 1) throw;
      run.refuse(*layout, fmt::format("{} stages: {}", layout->stages(), error.what()), true);
    }
    run.budget.take_program(run.request.micro_batches, layout->stages());
    ++run.progress.tried;
  }
  // They are told of in the order of the layouts.
  std::ranges::stable_sort(run.refusals, {}, [&](const PlanningRun::Refusal& refusal) {
    return refusal.layout ? std::ranges::find(layouts, *refusal.layout) - layouts.begin() : -1;
  });
}

void search_orders_of_replicas(PlanningRun& run, std::vector<Layout> layouts) {
  struct Task {
    Layout layout;
    double bound, estimate;
  };
  std::vector<Task> tasks;
  for (Layout& layout : layouts) {
    const OrderSearch search(run, layout);
    const double bound = search.bound();
    if (!clearly_less(bound, run.best())) continue;
    tasks.push_back({std::move(layout), bound, 0});
    tasks.back().estimate = OrderSearch(run, tasks.back().layout).estimate(layouts.size());
  }
  std::ranges::stable_sort(tasks, {}, &Task::estimate);
  run.progress.placements += tasks.size();
  for (const auto& [layout, bound, estimate] : tasks) {
    if (run.budget.over() || estimate > kMostGainedOfMany * run.best()) break;
    if (clearly_less(bound, run.best())) {
      PlanMaker::Balanced made = OrderSearch(run, layout).search_within_reach();
      run.budget.take_program(run.request.micro_batches, layout.stages());
      if (made.candidate) run.keep(std::move(*made.candidate));
    }
    ++run.progress.tried;
  }
}

void with_order(PlanningRun& run, const Layout& layout, std::vector<int> cuts, RecomputeSettings repeats) {
  PlanMaker::Balanced made = OrderSearch(run, layout).with(std::move(cuts), std::move(repeats));
  if (made.candidate) run.keep(std::move(*made.candidate));
}

void search_others_further(PlanningRun& run) {
  std::vector<PlanningRun::OfAnother> others = std::move(run.of_others);
  run.of_others.clear();
  std::erase_if(others, [&](const PlanningRun::OfAnother& other) {
    return other.nearest.seconds > run.best() * kWithinFarReach;
  });
  halve(
      run, std::move(others), [](const PlanningRun::OfAnother& other) { return other.nearest.seconds; },
      [&](PlanningRun::OfAnother& other, CutSearchBudget share) {
        share.before = other.before;
        CutSearchResult found =
            run.search_cuts(other.layout, *other.schedule, run.best(), share, {other.nearest.cuts}, true);
        run.budget.take(found.work);
        ++other.before.times;
        other.before.descended += found.descended;
        const CutSearchResult::Nearest met = found.best_met();
        if (!met.cuts.empty()) other.nearest = met;
        if (!found.cuts) return;
        with_order(run, other.layout, std::move(*found.cuts), std::move(found.settings));
      });
}

}  // namespace stagecraft::planning
