// The search over layouts by simulated step: best first by what no layout can be below. Whatever cannot beat
// the best plan so far is left alone.

#include "partitioner/plan/compare_costs.h"
#include "partitioner/search/halving.h"
#include "partitioner/search/planning_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <set>
#include <utility>
#include <vector>

namespace stagecraft::planning {
namespace {

/// Of what a layout's search gets, a part comes first, to see which layouts are worth the rest.
constexpr int kFirstPart = 4;
/// What a layout takes more than the best is seldom made up for.
constexpr double kFar = 1.15;
/// Nor, where others fit, what misses so much more than the cap.
constexpr double kFarInMemory = 1.2;
/// When there is no time to search more layouts than this, there is none to look at their bounds either.
constexpr std::size_t kMostBounds = 1000;
/// What is left is for so many searches like the one without a cap.
constexpr std::size_t kCapShare = 8;
/// And of several stages per rank so much of that.
constexpr std::int64_t kLoopCapShare = 4;

class LayoutSearch {
 public:
  explicit LayoutSearch(PlanningRun& run) : run_(run) {}

  /// With cuts of their own the plain ones are priced already, and nothing else is to be searched.
  [[nodiscard]] std::optional<StepProof> search(const std::vector<Layout>& plain, const Layouts& wide) {
    const bool chosen = !run_.request.cuts.empty();
    proof_.whole_family = wide.all;
    std::vector<Task> tasks = tasks_of(chosen ? std::vector<Layout>() : plain);
    std::vector<Task> wide_tasks = tasks_of(wide.list);
    if (run_.schedule.orders_by_time && !wide_tasks.empty()) {
      // Each set of cuts has an order of its own, so searches take long. What may have replicas is never behind what may
      // not: one device per stage gets as much as it gets alone.
      if (!chosen) {
        run_.budget.aside([&] { begin_with_equal_widths(wide_tasks); });
        go_over(std::move(tasks));
      }
      run_.budget.next_phase(kForReplicas);
      by_time_ = true;
      tasks = std::move(wide_tasks);
    } else {
      std::ranges::move(wide_tasks, std::back_inserter(tasks));
    }
    go_over(std::move(tasks));
    if (run_.candidates.empty() && !wide.all) run_.unproved = true;
    if (run_.candidates.empty() && run_.refusals.empty() && !tasks_.empty() && run_.maker.capacity())
      run_.keep_least(tasks_.front().layout, {}, /*proved=*/false);
    if (chosen || run_.candidates.empty()) return std::nullopt;
    run_.finish(proof_);
    if (run_.maker.capacity() && !run_.request.search.first_that_fits) price_without_cap();
    return proof_;
  }

 private:
  /// A layout whose cuts may be worth a search.
  struct Task {
    Layout layout;
    double bound = 0;
    std::vector<std::vector<int>> seeds{};
    bool open = false;  ///< something faster may be there
    SearchedBefore before{};
    CutSearchResult::Nearest nearest{};  ///< of the last one, if it did not end
  };

  void go_over(std::vector<Task> tasks) {
    sort(tasks);  // it ends at the first bound that is too high, and earlier searches may have raised some
    proof_.layouts += tasks.size();
    for (std::size_t i = 0; i < tasks.size(); ++i) {
      Task& task = tasks[i];
      if (!(clearly_less(task.bound, run_.best()))) break;
      if (run_.request.search.first_that_fits && !run_.candidates.empty()) break;
      if (known_not_to_fit(task.layout)) continue;
      if (by_time_ && run_.budget.over() && run_.candidates.empty()) {
        run_.refusals.push_back(
            {.reason = fmt::format("nothing that fits was found in the first {} of {} layouts: search longer "
                                   "(--time-limit), or try a schedule that keeps less",
                                   i, tasks.size()),
             .proved = false});
        break;
      }
      if (run_.budget.over() && !run_.candidates.empty() && tasks.size() > kMostBounds) {
        task.open = true;
        break;  // the others' bounds are no lower
      }
      task.bound = std::max(task.bound, first_bound(task.layout));
      if (!(clearly_less(task.bound, run_.best()))) continue;
      if (run_.budget.over() && !run_.candidates.empty()) {  // the others' bounds are still of use
        task.open = true;
        continue;
      }
      try {
        if (!run_.request.cuts.empty()) {
          run_.keep(task.layout, run_.maker.balanced(task.layout));
          continue;
        }
        const bool goes_on = descends(task.layout) && i + 1 < tasks.size();
        CutSearchBudget share = goes_on ? run_.share(kFirstPart * waiting(tasks, i), kFirstPart * kParts)
                                        : run_.share(waiting(tasks, i));
        share.goes_on = goes_on;
        search(task, share);
      } catch (const InputError& error) {  // not such widths, says the schedule
        if (task.layout.replicated())
          run_.refuse(task.layout, fmt::format("{}: {}", task.layout.name(), error.what()), true);
      }
    }
    go_on_with_the_nearest(tasks);
    for (const Task& task : tasks) {
      if (task.open) proof_.bound = std::min(proof_.bound, Seconds{task.bound});
    }
    std::ranges::move(tasks, std::back_inserter(tasks_));
  }

  /// Whether a layout's cuts are found by descent, which goes on for as long as it is let.
  [[nodiscard]] bool descends(const Layout& layout) const {
    return run_.schedule.orders_by_time || layout.stages_per_rank > 1 || !run_.maker.facts().one_program();
  }

  /// Whether the best of its cuts are so far behind the best plan that they will hardly be before it.
  [[nodiscard]] bool far(const Task& task) const {
    if (run_.candidates.empty()) return false;
    if (task.nearest.seconds < kInfinite) return task.nearest.seconds > kFar * run_.best();
    const std::optional<Bytes> capacity = run_.maker.capacity();
    return capacity && static_cast<double>(task.nearest.needs.value) >
                           kFarInMemory * static_cast<double>(capacity->value);
  }

  /// With what is left of the budget.
  void go_on_with_the_nearest(std::vector<Task>& tasks) {
    std::vector<Task*> near;
    for (Task& task : tasks) {
      if (task.open && !task.nearest.cuts.empty() && !far(task)) near.push_back(&task);
    }
    halve(
        run_, std::move(near),
        [](const Task* task) { return std::pair(task->nearest.seconds, task->nearest.needs); },
        [&](Task* task, const CutSearchBudget& share) {
          if (task->nearest.cuts.empty()) return;
          task->seeds = {task->nearest.cuts};
          search(*task, share);
        });
  }

  /// Of each number of stages the widest: where only a program says what stages need, a search meets few cuts that
  /// fit, and these are likely to.
  void begin_with_equal_widths(std::vector<Task>& tasks) {
    for (Task& task : tasks) {
      const Layout& layout = task.layout;
      if (run_.budget.half_spent()) return;
      if (layout.block != 1 || layout.widths.front() != run_.cluster.devices() / layout.positions() ||
          std::ranges::adjacent_find(layout.widths, std::not_equal_to{}) != layout.widths.end() ||
          !clearly_less(task.bound, run_.best()) || run_.maker.impossible_on(layout.positions()))
        continue;
      search(task, {.work = 0}, /*to_begin=*/true);
    }
  }

  /// `to_begin`: the layout is searched again.
  void search(Task& task, CutSearchBudget share, bool to_begin = false) {
    share.before = task.before;
    const bool likely = run_.schedule.orders_by_time && task.layout.replicated();
    if (likely && task.seeds.empty()) task.seeds = run_.maker.likely_cuts(task.layout);
    bool by_replica = likely && !shares_links();
    for (bool again = true; again;) {
      const CutSearchResult found = run_.search_cuts(task.layout, run_.schedule, to_beat(task.layout), share,
                                                     task.seeds, true, by_replica);
      run_.budget.take(found.work);
      run_.budget.take_program(run_.request.micro_batches, task.layout.stages());
      proof_.simulated += found.simulated;
      task.bound = std::max(found.bound, task.bound);
      if (!to_begin) {
        task.open = true;
        ++task.before.times;
        task.before.descended += found.descended;
        task.nearest = found.best_met();
        if (found.complete) task.nearest.cuts.clear();
      }
      again = false;
      if (!found.cuts) {
        if (!to_begin && run_.candidates.empty()) refuse(task.layout, found);
        return;
      }
      PlanCandidate candidate =
          run_.maker.priced(task.layout, run_.maker.plan_of(task.layout, *found.cuts, found.settings));
      // What one pipeline needs the others need hardly ever more of.
      again = by_replica && !run_.maker.over_cap(candidate.plan).empty();
      by_replica = false;
      if (!again) run_.keep(task.layout, {std::move(candidate), {}});
    }
  }

  /// Takes note that nothing fits, or that nothing was found.
  void refuse(const Layout& layout, const CutSearchResult& found) {
    if (by_time_) refused_.insert(shape_of(layout));
    const bool ordered = run_.schedule.orders_by_time;
    // Of stages that have their ranks to themselves it is known already, and proved.
    if (layout.stages_per_rank == 1 && !ordered && !layout.replicated()) return;
    // Where an order follows the costs, other recomputes than those tried may fit.
    const bool proved = found.complete && !(ordered && run_.maker.chooses_recompute());
    if (!run_.maker.capacity() || (layout.stages_per_rank == 1 && layout.replicated())) {
      run_.unproved |= !proved;
      return;
    }
    run_.keep_least(layout, found.nearest.cuts, proved);
  }

  [[nodiscard]] bool known_not_to_fit(const Layout& layout) const {
    return run_.maker.impossible_on(layout.positions()) || refused_before(layout);
  }

  /// Layouts from that one on. A time limit is for those alone that will be searched: it is to be used.
  [[nodiscard]] std::size_t waiting(const std::vector<Task>& tasks, std::size_t at) const {
    if (!run_.request.search.time_limit) return tasks.size() - at;
    return 1 + to_size(std::count_if(
                   tasks.begin() + static_cast<std::ptrdiff_t>(at) + 1, tasks.end(), [&](const Task& task) {
                     return clearly_less(task.bound, run_.best()) && !known_not_to_fit(task.layout);
                   }));
  }

  /// What the memory of a layout's stages depends on: of each position its micro-batches, as far as more of them
  /// could be in flight. Widths that differ are in flight by their ratios, so there is no limit.
  [[nodiscard]] std::vector<int> shape_of(const Layout& layout) const {
    const bool equal = std::ranges::adjacent_find(layout.widths, std::not_equal_to{}) == layout.widths.end();
    std::vector<int> shape;
    for (const int replicas : layout.widths) {
      const int own = own_count(run_.request.micro_batches, 0, replicas);
      shape.push_back(equal ? std::min(own, 2 * layout.stages()) : own);
    }
    return shape;
  }
  [[nodiscard]] bool refused_before(const Layout& layout) const {
    return refused_.contains(shape_of(layout));
  }

  /// Whether pipelines get in each other's way.
  [[nodiscard]] bool shares_links() const {
    return std::ranges::any_of(run_.network.levels,
                               [](const NetworkLevel& level) { return level.shared_by == SharedBy::child; });
  }

  /// Some stage's busiest device has at least its share of all compute.
  [[nodiscard]] Task task_of(const Layout& layout) const {
    const double fastest = run_.cluster.fastest();
    double shares = 0;
    for (const int replicas : layout.widths) {
      const int busiest = own_count(run_.request.micro_batches, 0, replicas);
      shares += fastest / busiest;
    }
    return {layout, run_.chain.compute(0, run_.chain.layers()) / shares};
  }

  [[nodiscard]] std::vector<Task> tasks_of(const std::vector<Layout>& layouts) const {
    std::vector<Task> tasks;
    for (const Layout& layout : layouts) {
      tasks.push_back(task_of(layout));
      for (const PlanCandidate& candidate : run_.candidates) {
        if (candidate.plan.placement() == layout.placement())
          tasks.back().seeds.push_back(candidate.plan.cuts());
      }
    }
    sort(tasks);
    return tasks;
  }
  /// By their bounds; where these are equal, short pipelines first: their searches end soon.
  static void sort(std::vector<Task>& tasks) {
    std::ranges::stable_sort(tasks, {},
                             [](const Task& task) { return std::pair(task.bound, task.layout.stages()); });
  }

  /// What cuts of that layout have to beat. With one device per stage what is known of others is passed over where
  /// orders follow the costs: a descent goes over cuts that are no better to ones that are.
  [[nodiscard]] double to_beat(const Layout& layout) const {
    if (!run_.schedule.orders_by_time || layout.replicated()) return run_.best();
    double best = kInfinite;
    for (const PlanCandidate& candidate : run_.candidates) {
      if (!candidate.plan.placement().replicated()) best = std::min(best, candidate.step().value);
    }
    return best;
  }

  /// Needs no program: what holds for any order.
  [[nodiscard]] double first_bound(const Layout& layout) const {
    const PlacedCosts placed(run_.chain, run_.network, layout.placement(), run_.cluster.speed);
    const OrderFreeBounds bounds = order_free_bounds(
        placed, run_.request.micro_batches, true, run_.goes_on(placed.placement()), run_.gradient_from() > 0);
    StageSettings settings = run_.maker.settings(layout, run_.schedule, /*capped=*/false);
    return CutSearch(placed, bounds, run_.maker.cuttable(), settings).first_bound();
  }

  /// Of the best plan's layout, if a cap costs it time.
  void price_without_cap() {
    const auto best = std::ranges::min_element(run_.candidates, {}, &PlanCandidate::step);
    const auto held = std::ranges::find(tasks_, best->plan.placement(),
                                        [](const Task& task) { return task.layout.placement(); });
    if (held == tasks_.end()) return;  // by classes
    CutSearchBudget share = run_.budget.share(kCapShare, kParts, [] {});
    if (held->layout.stages_per_rank > 1) share.work /= kLoopCapShare;
    const CutSearchResult free =
        run_.search_cuts(held->layout, run_.schedule, run_.best(), share, {best->plan.cuts()}, false);
    if (free.cuts && free.seconds < run_.best() * (1 - 1e-9)) proof_.without_cap = Seconds{free.seconds};
  }

  PlanningRun& run_;
  std::vector<Task> tasks_;  // that were gone over
  StepProof proof_{.bound = Seconds{kInfinite}};
  /// Whether each set of cuts has an order of its own, and it is those with replicas that are gone over.
  bool by_time_ = false;
  std::set<std::vector<int>> refused_;  // shapes of layouts in which nothing fits, by time
};

}  // namespace

std::optional<StepProof> search_layouts(PlanningRun& run, const std::vector<Layout>& plain,
                                        const Layouts& wide) {
  return LayoutSearch(run).search(plain, wide);
}

}  // namespace stagecraft::planning
