#include "partitioner/search/planner.h"

#include "base/text.h"
#include "partitioner/plan/compare_costs.h"
#include "partitioner/search/nearby_cuts.h"
#include "partitioner/search/order_search.h"
#include "partitioner/search/planning_run.h"
#include "partitioner/search/program_pricer.h"
#include "partitioner/search/request_checks.h"
#include "partitioner/search/width_partition.h"
#include "schedules/generators/registry.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>
#include <tuple>
#include <utility>

namespace stagecraft {

namespace {

using namespace planning;

/// More computations are not ordered by their times: that would take minutes for each set of cuts.
constexpr std::int64_t kMostOrdered = 2'000'000;
/// More micro-batches of one pipeline are not planned: a plan simulates each of them, several times, which would take
/// minutes.
constexpr std::int64_t kMostOfPipeline = 100'000;
/// More stages per rank than this only add transfers.
constexpr int kMostSearchedStages = 4;
/// Rounds of widths, each without what the proof refused before.
constexpr int kMostWidths = 32;
/// For cuts near those of smallest bottleneck, in nanoseconds, about.
constexpr std::int64_t kNearby = 400'000'000;
/// Of a search over orders, for the schedules that came nearest, each planned by name; how many these are, and how near.
constexpr double kForNamed = 2.0 / 3;
constexpr std::size_t kMostNamed = 3;
constexpr double kNear = 1.2;
/// Layouts with replicas that are all tried.
constexpr std::size_t kMostTried = 300;

class Planner {
 public:
  Planner(const Profile& profile, const Cluster& cluster, const PlanRequest& request)
      : profile_(profile),
        run_(profile, cluster, request),
        scope_{request, cluster, run_.schedule, run_.maker.cuttable()} {}

  PlanResult run() {
    const std::vector<Layout> plain = plain_layouts();
    run_.progress.placements = plain.size();
    if (auto why = run_.maker.impossible_on(run_.cluster.devices())) refuse_all(plain, std::move(*why));
    if (run_.request.replicate && run_.request.widths.empty() && run_.cluster.devices() > 1)
      run_.budget.first_phase(kForReplicas);
    if (by_classes()) {
      search_by_classes(plain);
    } else {
      if (!run_.schedule.searched) take_plain(plain);
      if (searches_steps()) {
        proof_ = search_layouts(run_, plain, wide_layouts());
      } else if (run_.schedule.searched) {
        run_.budget.keep_back(kForNamed);
        search_orders(run_, plain);
        run_.budget.release();
        plan_nearest_by_name();
        if (run_.request.replicate) run_.budget.next_phase(kForReplicas);
        search_replicas();
      } else {
        take_widest();
      }
    }
    if (run_.candidates.empty()) refuse(NoPlanFits::Proof::of_this_chain);
    // Stable: of equal steps the one with fewer stages stays first.
    std::ranges::stable_sort(run_.candidates, {}, &PlanCandidate::step);
    if (!run_.schedule.synchronous && run_.request.cuts.empty() && !run_.request.search.first_that_fits) {
      look_nearby();
      std::ranges::stable_sort(run_.candidates, {}, &PlanCandidate::step);
    }
    // Of steps that are as short the one that needs least.
    const auto longer = std::ranges::find_if(run_.candidates, [&](const PlanCandidate& candidate) {
      return clearly_less(run_.candidates.front().step().value, candidate.step().value);
    });
    const auto least = std::min_element(run_.candidates.begin(), longer,
                                        [](const auto& a, const auto& b) { return a.memory() < b.memory(); });
    std::rotate(run_.candidates.begin(), least, least + 1);
    if (searches_steps() && run_.request.cuts.empty() && !run_.request.search.first_that_fits) {
      if (auto lighter = run_.lighter(run_.candidates.front())) run_.candidates.front() = std::move(*lighter);
    }
    PlanResult result{
        std::move(run_.candidates.front()), {}, run_.reasons(true), run_.reasons(false), proof_};
    // One of each stage count, with and without replicas, and of each shape.
    std::set<std::tuple<std::size_t, bool, std::string>> shown;
    const auto kind = [](const PlanCandidate& candidate) {
      const Placement placement = candidate.plan.placement();
      const bool replicas = placement.replicated();
      return std::tuple(placement.ranks.size(), replicas, replicas ? std::string() : candidate.placement);
    };
    shown.insert(kind(result.best));
    for (std::size_t i = 1; i < run_.candidates.size(); ++i) {
      if (shown.insert(kind(run_.candidates[i])).second)
        result.others.push_back(std::move(run_.candidates[i]));
    }
    return result;
  }

 private:
  /// `proof`: what there is, unless something was left open.
  [[noreturn]] void refuse(NoPlanFits::Proof proof) const {
    std::vector<std::string> reasons = run_.reasons(true);
    const std::vector<std::string> open = run_.reasons(false);
    reasons.insert(reasons.end(), open.begin(), open.end());
    if (reasons.empty()) {  // nothing was tried
      throw InputError(
          fmt::format("no layout has the stages, stages per rank or widths asked for: {} has none of them to "
                      "search on {} device{} "
                      "(several stages on a lone rank are one)",
                      run_.schedule.name, run_.cluster.devices(), run_.cluster.devices() == 1 ? "" : "s"));
    }
    if (proof == NoPlanFits::Proof::of_this_chain && (run_.unproved || !open.empty()))
      proof = NoPlanFits::Proof::none;
    throw NoPlanFits(std::move(reasons), proof, run_.budget.spent());
  }

  /// Before anything is searched; with what each number of stages misses, where that is soon known.
  [[noreturn]] void refuse_all(const std::vector<Layout>& plain, std::string why) {
    constexpr std::size_t kMostTold = 16;
    if (plain.size() <= kMostTold && !run_.schedule.searched && !run_.schedule.orders_by_time)
      take_plain(plain);
    run_.refusals.insert(run_.refusals.begin(), {.reason = std::move(why)});
    refuse(NoPlanFits::Proof::of_any_cuts);
  }

  /// Stages of a placement kind, so many a rank.
  struct Shape {
    PlacementKind kind;
    int stages_per_rank;
  };

  /// Whether cuts are searched for by the simulated step.
  [[nodiscard]] bool searches_steps() const { return run_.schedule.synchronous && !run_.schedule.searched; }

  /// The schedule's own shape, or all that a search goes over.
  [[nodiscard]] std::vector<Shape> shapes() const {
    const int own = run_.request.virtual_stages.value_or(run_.schedule.virtual_stages);
    if (!run_.schedule.searched) return {{run_.schedule.placement, own}};
    std::vector<Shape> all;
    const auto wanted = [&](int v) {
      return !run_.request.virtual_stages || *run_.request.virtual_stages == v;
    };
    const bool first_that_fits = run_.request.search.first_that_fits && !run_.request.virtual_stages;
    const int most =
        first_that_fits ? 1 : std::max(kMostSearchedStages, run_.request.virtual_stages.value_or(1));
    if (wanted(1)) all.push_back({PlacementKind::straight, 1});
    if (wanted(2) && !first_that_fits) all.push_back({PlacementKind::v, 2});
    for (int v = 2; v <= most; ++v) {
      if (wanted(v)) all.push_back({PlacementKind::loop, v});
    }
    return all;
  }

  /// Throws InputError for a step of more micro-batches than any layout's pipelines may have.
  void check_length() const {
    const PlanRequest& request = run_.request;
    std::int64_t pipelines = request.replicate ? run_.cluster.devices() : 1;
    if (!request.widths.empty()) pipelines = std::ranges::min(request.widths);
    if (pipelines < 1 || request.micro_batches <= kMostOfPipeline * pipelines) return;
    throw InputError(
        fmt::format("{} micro-batches per step are too many to plan: at most {} per pipeline{}; make the "
                    "micro-batches fewer and larger",
                    request.micro_batches, kMostOfPipeline,
                    pipelines > 1 ? fmt::format(", and there are at most {} pipelines", pipelines) : ""));
  }

  /// Why so many stages are more to order than can be.
  [[nodiscard]] std::optional<std::string> too_long(int stages) const {
    if (!run_.schedule.orders_by_time) return std::nullopt;
    const std::int64_t computations = std::int64_t{3} * stages * run_.request.micro_batches;
    if (computations <= kMostOrdered) return std::nullopt;
    return fmt::format(
        "{} of {} micro-batches are {} computations, and {} orders at most {}: make the "
        "micro-batches fewer and larger",
        plural(stages, "stage"), run_.request.micro_batches, computations, run_.schedule.name, kMostOrdered);
  }

  /// What there is to try with one device per stage. Throws InputError where there is nothing at all.
  [[nodiscard]] std::vector<Layout> plain_layouts() {
    std::vector<Layout> layouts;
    std::optional<InputError> impossible;
    std::optional<std::string> longest;  // of those that are too long the first
    if (run_.request.virtual_stages.value_or(1) < 1) {
      throw InputError(fmt::format("a rank has at least one stage, not {}", *run_.request.virtual_stages));
    }
    for (const Shape& shape : shapes()) {
      try {
        check_request(scope_, shape.kind, shape.stages_per_rank);
        check_length();
        for (const int stages : stage_counts(scope_, shape.stages_per_rank)) {
          // Loops and Vs over one rank are nothing but more stages there.
          if (run_.schedule.searched && stages == shape.stages_per_rank && stages > 1) continue;
          if (auto why = too_long(stages)) {
            if (!longest) longest = std::move(why);
            continue;
          }
          layouts.push_back(
              straight_layout(shape.kind, shape.stages_per_rank, stages / shape.stages_per_rank));
        }
      } catch (const InputError& error) {
        if (!impossible) impossible = error;
      }
    }
    if (layouts.empty() && longest) throw InputError(*longest);
    if (layouts.empty() && impossible) throw *impossible;
    if (longest) run_.refusals.push_back({.reason = std::move(*longest)});
    if (std::ranges::any_of(run_.request.widths, [](int w) { return w > 1; })) layouts.clear();
    return layouts;
  }

  /// Whether layouts are searched by classes, for there are too many to look at each.
  [[nodiscard]] bool by_classes() const {
    const Shape shape = shapes().front();
    return run_.request.replicate && run_.request.widths.empty() && run_.request.cuts.empty() &&
           searches_steps() && shape.kind == PlacementKind::straight && shape.stages_per_rank == 1 &&
           !few_widths(shape.stages_per_rank, layout_limits(scope_));
  }

  void take_plain(const std::vector<Layout>& layouts) {
    std::optional<std::string> too_few;  // devices, said once of the most
    for (const Layout& layout : layouts) {
      // The rest is left to the search by step, where there is one.
      if (searches_steps() && run_.request.cuts.empty() && run_.budget.half_spent() &&
          !run_.candidates.empty())
        break;
      // A program for each refusal would take long where the order follows the costs.
      if (searches_steps() && run_.schedule.orders_by_time && run_.request.cuts.empty()) {
        if (const auto why = run_.maker.impossible_on(layout.positions())) {
          too_few = fmt::format("{} stages: {}", layout.stages(), *why);
          ++run_.progress.tried;
          continue;
        }
      }
      try {
        PlanMaker::Balanced made = run_.maker.balanced(layout);
        // Why several stages per rank do not fit, the search says that follows.
        const bool follows = searches_steps() && run_.request.cuts.empty() && layout.stages_per_rank > 1 &&
                             layout.positions() > 1;
        if (made.candidate || !follows) run_.keep(layout, std::move(made));
      } catch (const InputError& error) {  // not so many, says the schedule
        if (layouts.size() == 1) throw;
        run_.refuse(layout, fmt::format("{} stages: {}", layout.stages(), error.what()), true);
      }
      // An action of the program takes about as long to generate, lower and prove.
      run_.budget.take_program(run_.request.micro_batches, layout.stages());
      ++run_.progress.tried;
    }
    if (too_few) run_.refusals.insert(run_.refusals.begin(), {.reason = std::move(*too_few)});
  }

  /// What is plain is one of the classes, and gets as much as it gets alone: before them where orders follow the costs
  /// (layout_search.cpp), and otherwise behind them, as far as its bounds are below what they have found.
  void search_by_classes(const std::vector<Layout>& plain) {
    const bool plain_first = run_.schedule.orders_by_time;
    std::optional<StepProof> of_plain;
    const auto search_plain = [&] {
      // Programs of all micro-batches through one pipeline may be long: where classes fit, only bounds below theirs are
      // worth one.
      if (run_.candidates.empty()) take_plain(plain);
      of_plain = search_layouts(run_, plain, {});
    };
    if (plain_first) search_plain();
    run_.budget.next_phase(kForReplicas);
    const double before = run_.best();
    proof_ = search_classes(run_);
    const double by_classes = run_.best();
    if (!plain_first) {
      run_.budget.next_phase(1);
      search_plain();
    }
    if (run_.candidates.empty()) proof_.reset();
    if (!proof_ || !of_plain) return;
    proof_->bound = std::min(proof_->bound, of_plain->bound);
    proof_->simulated += of_plain->simulated;
    if (plain_first ? by_classes >= before : run_.best() < by_classes)
      proof_->without_cap = of_plain->without_cap;
    run_.finish(*proof_);
  }

  /// The schedules that came nearest are planned as they would be by name, and their cuts get an order: a search over
  /// orders is behind none of these.
  void plan_nearest_by_name() {
    std::vector<PlanningRun::OfAnother> others = std::exchange(run_.of_others, {});
    if (run_.request.search.first_that_fits || !run_.request.cuts.empty()) return;
    std::ranges::stable_sort(others, {}, [](const auto& other) { return other.nearest.seconds; });
    std::vector<PlanRequest> requests;
    const std::size_t most = run_.request.search.time_limit ? 1 : kMostNamed;
    for (const PlanningRun::OfAnother& other : others) {
      if (requests.size() == most || other.nearest.seconds > kNear * run_.best()) break;
      PlanRequest by_name = run_.request;
      by_name.schedule.name = other.schedule->name;
      by_name.virtual_stages = other.layout.stages_per_rank;
      by_name.search.progress = [this](const SearchProgress&) { run_.tell_progress(); };
      const bool known = std::ranges::any_of(requests, [&](const PlanRequest& request) {
        return request.schedule.name == by_name.schedule.name &&
               request.virtual_stages == by_name.virtual_stages;
      });
      if (!known) requests.push_back(std::move(by_name));
    }
    for (PlanRequest& request : requests) {
      run_.budget.give_whole(request.search);
      plan_by_name(request);
    }
  }

  void plan_by_name(const PlanRequest& request) {
    try {
      const Plan plan = make_plan(profile_, run_.cluster, request).best.plan;
      const Schedule& schedule = find_schedule(request.schedule.name);
      if (const auto layout = layout_of(plan.placement(), schedule.placement, *request.virtual_stages))
        with_order(run_, *layout, plan.cuts(), plan.recompute());
    } catch (const RefusedError&) {  // nothing fits
    } catch (const InputError&) {    // not so many micro-batches, says the schedule
    }
  }

  /// The layout that has the placement.
  [[nodiscard]] static std::optional<Layout> layout_of(const Placement& placement, PlacementKind kind,
                                                       int stages_per_rank) {
    const int positions = placement.stages() / stages_per_rank;
    std::vector<int> widths;
    for (int p = 0; p < positions; ++p)
      widths.push_back(static_cast<int>(placement.ranks[to_size(p)].size()));
    for (int block = 1; block <= positions; ++block) {
      if (positions % block != 0) continue;
      Layout layout{kind, stages_per_rank, widths, block};
      if (layout.placement() == placement) return layout;
    }
    return std::nullopt;
  }

  /// With replicas, of the schedule's own shape.
  [[nodiscard]] Layouts wide_layouts() const {
    const Shape shape = shapes().front();
    return planning::wide_layouts(scope_, shape.kind, shape.stages_per_rank);
  }

  /// Of a searched schedule: equally wide stages of each shape, or those asked for; then what came near once more.
  void search_replicas() {
    const bool asked = !run_.request.widths.empty();
    std::vector<Layout> layouts;
    for (const Shape& shape : shapes()) {
      for (Layout& layout : planning::wide_layouts(scope_, shape.kind, shape.stages_per_rank).list) {
        const bool like_another = layout.block > 1 && run_.network.levels.size() == 1;
        if (like_another || too_long(layout.stages())) continue;
        if (asked || std::ranges::adjacent_find(layout.widths, std::not_equal_to{}) == layout.widths.end())
          layouts.push_back(std::move(layout));
      }
    }
    if (asked) {
      run_.progress.placements += layouts.size();
      search_orders(run_, layouts);
    } else if (!run_.candidates.empty()) {
      search_orders_of_replicas(run_, std::move(layouts));
    }
    search_others_further(run_);
  }

  /// Without a flush: the widths of smallest bottleneck, or those asked for. Where there are few layouts all
  /// are tried as well: the simulation knows of memory, groups and links what the bottleneck does not.
  void take_widest() {
    if (!run_.request.widths.empty() || !run_.request.cuts.empty()) {
      for (const Layout& layout : wide_layouts().list) take(layout);
    } else if (run_.request.replicate) {
      take_widths_that_fit();
      const Layouts all = wide_layouts();
      if (!all.all || all.list.size() > kMostTried) {
        run_.unproved = true;
        return;
      }
      for (const Layout& layout : all.list) take(layout);
    }
  }

  /// A stage's memory depends on the widths of those behind it, which a dynamic program over widths does not
  /// know. So stages that the proof refuses are left out, and the next best widths are asked for.
  void take_widths_that_fit() {
    std::set<std::tuple<int, int, int>> refused;  // first and last layer, replicas
    const ChainCosts repeated(run_.maker.repeated());
    const WidthProblem problem{
        .chain = repeated,
        .network = run_.network,
        .speed = run_.cluster.speed,
        .devices = run_.cluster.devices(),
        .cuttable = run_.maker.cuttable(),
        .micro_batches = run_.request.micro_batches,
        .stages = run_.request.stages,
        .possible = [&](int first, int last, int, int replicas) {
          return run_.maker.may_fit(first, last) && !refused.contains({first, last, replicas});
        }};
    for (int round = 0; round < kMostWidths; ++round) {
      const auto widest = width_partition(problem);
      if (!widest) return;
      const Layout layout{run_.schedule.placement, 1, widest->widths, 1};
      if (!layout.replicated() || take(layout)) return;
      const std::size_t known = refused.size();
      const std::set<std::tuple<int, int, int>> more = refused_stages(layout, widest->cuts);
      refused.insert(more.begin(), more.end());
      if (refused.size() == known) return;
    }
  }

  /// First and last layer, and replicas, of the stages that need more than there is; none if the schedule cannot
  /// run the layout at all.
  [[nodiscard]] std::set<std::tuple<int, int, int>> refused_stages(const Layout& layout,
                                                                   const std::vector<int>& cuts) const {
    std::set<std::tuple<int, int, int>> refused;
    try {
      const RecomputeSettings settings(layout.widths.size(), run_.maker.least_memory_setting());
      const Plan plan = run_.maker.priced(layout, run_.maker.plan_of(layout, cuts, settings)).plan;
      const Placement placement = plan.placement();
      for (const Rank rank : run_.maker.over_cap(plan)) {
        const StageId stage = placement.stages_of(rank).front();
        const StagePlan& cut = plan.stages[stage.index()];
        refused.insert({cut.first_layer, cut.last_layer, placement.replicas(stage)});
      }
    } catch (const InputError&) {  // not with so many micro-batches per group: take() has said so
    }
    return refused;
  }

  /// The best first, as far as there is time.
  void look_nearby() {
    std::int64_t left = kNearby;
    for (PlanCandidate& candidate : run_.candidates) {
      if (left <= 0) return;
      const auto its = layout_of(candidate.plan.placement(), run_.schedule.placement, 1);
      if (!its) continue;
      std::shared_ptr<PlanPricer> pricer = std::move(run_.pricer_of_best);
      if (!pricer) {
        pricer = std::make_shared<PlanPricer>(candidate.plan);
        left -= kMade * static_cast<std::int64_t>(pricer->actions());
      }
      candidate = with_nearby_cuts(run_, *its, std::move(candidate), *pricer, left);
    }
  }

  /// With cuts that fit, if there are any.
  bool take(const Layout& layout) {
    try {
      PlanMaker::Balanced balanced = run_.maker.balanced(layout);
      balanced.reason = fmt::format("{}, {}", layout.name(), balanced.reason);
      return run_.keep(layout, std::move(balanced));
    } catch (const InputError& error) {
      run_.refuse(layout, fmt::format("{}: {}", layout.name(), error.what()), true);
      return false;
    }
  }

  const Profile& profile_;
  PlanningRun run_;
  RequestScope scope_;
  std::optional<StepProof> proof_;
};

}  // namespace

NoPlanFits::NoPlanFits(std::vector<std::string> reasons, Proof proof, Seconds searched)
    : RefusedError(fmt::format("{}:\n  {}",
                               proof == Proof::none ? fmt::format("nothing that fits was found within {} s",
                                                                  std::ceil(searched.value))
                                                    : "no plan fits",
                               fmt::join(reasons, "\n  "))),
      reasons_(std::move(reasons)),
      proof_(proof),
      searched_(searched) {
  STAGECRAFT_CHECK(!reasons_.empty() && std::ranges::find(reasons_, "") == reasons_.end(),
                   "a refusal has its reasons");
}

Bytes PlanCandidate::memory() const { return std::ranges::max(plan.predicted.value().memory); }

PlanResult make_plan(const Profile& profile, const Cluster& cluster, const PlanRequest& request) {
  return Planner(profile, cluster, request).run();
}

}  // namespace stagecraft
