#include "partitioner/planner.h"

#include "partitioner/planning/cut_search.h"
#include "partitioner/planning/plan_maker.h"
#include "partitioner/planning/program_pricer.h"
#include "partitioner/planning/request_checks.h"
#include "partitioner/planning/width_partition.h"
#include "schedules/synthesis/synthesis.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <set>
#include <tuple>
#include <utility>

namespace stagecraft {

namespace {

using namespace planning;

constexpr double kInfinite = std::numeric_limits<double>::infinity();
/// More stages a rank than this only add transfers.
constexpr int kMostSearchedStages = 4;
/// Of the work that is left, what one layout may have at least while others wait.
constexpr std::int64_t kLayoutShare = 8;
/// Of a stage and micro-batch, and nanoseconds to make and prove one.
constexpr std::int64_t kActions = 10;
constexpr std::int64_t kNanoseconds = 100;

/// When there is no time to search more layouts than this, there is none to look at their bounds either.
constexpr std::size_t kMostBounds = 1000;

/// How much may still be searched.
class Budget {
 public:
  explicit Budget(const SearchBudget& asked) : asked_(asked), left_(asked.cut_work) {}

  [[nodiscard]] Seconds spent() const {
    return Seconds{std::chrono::duration<double>(Clock::now() - begin_).count()};
  }
  /// What one of so many layouts gets; `tell` is called now and then.
  [[nodiscard]] CutSearchBudget share(std::size_t layouts, const std::function<void()>& tell) const {
    const auto waiting = static_cast<std::int64_t>(std::max<std::size_t>(layouts, 1));
    CutSearchBudget budget;
    if (!asked_.time_limit) {
      budget.work = std::max(left_ / waiting, left_ / kLayoutShare);
      budget.go_on = [tell] {
        tell();
        return true;
      };
      return budget;
    }
    const double left = std::max(0.0, (*asked_.time_limit - spent()).value);
    const double share = left / static_cast<double>(std::min(waiting, kLayoutShare));
    const Seconds until = spent() + Seconds{share};
    budget.go_on = [this, tell, until] {
      tell();
      return spent() < until;
    };
    return budget;
  }
  void take(std::int64_t work) { left_ = std::max<std::int64_t>(0, left_ - work); }
  [[nodiscard]] bool half_spent() const {
    return asked_.time_limit ? spent() >= *asked_.time_limit / 2 : left_ < asked_.cut_work / 2;
  }
  [[nodiscard]] bool over() const { return asked_.time_limit ? spent() >= *asked_.time_limit : left_ == 0; }

 private:
  using Clock = std::chrono::steady_clock;
  const SearchBudget& asked_;
  std::int64_t left_;
  Clock::time_point begin_ = Clock::now();
};

class Planner {
 public:
  Planner(const Profile& profile, const Cluster& cluster, const PlanRequest& request)
      : cluster_(cluster),
        request_(request),
        maker_(profile, cluster, request),
        schedule_(maker_.schedule()),
        chain_(maker_.measurement()),
        network_(cluster.network()),
        budget_(request.search) {}

  PlanResult run();

 private:
  /// Stages of a placement kind, so many a rank.
  struct Shape {
    PlacementKind kind;
    int stages_a_rank;
  };
  /// A layout whose cuts may be worth a search.
  struct Task {
    Layout layout;
    double bound = 0;
    std::vector<std::vector<int>> seeds{};
  };

  /// The schedule's own shape, or all that a search goes over.
  [[nodiscard]] std::vector<Shape> shapes() const;
  /// What there is to try with one device a stage. Throws InputError where there is nothing at all.
  [[nodiscard]] std::vector<Layout> plain_layouts() const;
  [[nodiscard]] Layouts replicated() const;
  void take_plain(const std::vector<Layout>& layouts);
  void take_widest();
  void search_by_step(const std::vector<Layout>& plain);
  [[nodiscard]] Task task_of(const Layout& layout) const;
  [[nodiscard]] double first_bound(const Layout& layout) const;
  [[nodiscard]] CutSearchResult search_cuts(const Layout& layout, const Schedule& schedule, double to_beat,
                                            const CutSearchBudget& budget,
                                            const std::vector<std::vector<int>>& seeds, bool capped) const;
  [[nodiscard]] PlanMaker::Balanced searched(const Layout& layout);
  [[nodiscard]] std::vector<int> cuts_of_the_others(const Layout& layout, const std::vector<int>& even);
  SearchResult search(Plan& plan);
  void keep(PlanCandidate candidate);
  [[nodiscard]] double best() const { return progress_.best.value; }
  void tell_progress() const;

  const Cluster& cluster_;
  const PlanRequest& request_;
  PlanMaker maker_;
  const Schedule& schedule_;
  ChainCosts chain_;
  Network network_;
  Budget budget_;
  std::vector<PlanCandidate> candidates_;
  std::vector<std::string> infeasible_;
  std::optional<StepProof> proof_;
  SearchProgress progress_{.best = Seconds{kInfinite}};
};

std::vector<Planner::Shape> Planner::shapes() const {
  const int own = request_.virtual_stages.value_or(schedule_.virtual_stages);
  if (!schedule_.searched) return {{schedule_.placement, own}};
  std::vector<Shape> all;
  const auto wanted = [&](int v) { return !request_.virtual_stages || *request_.virtual_stages == v; };
  const int most = std::max(kMostSearchedStages, request_.virtual_stages.value_or(1));
  if (wanted(1)) all.push_back({PlacementKind::straight, 1});
  if (wanted(2)) all.push_back({PlacementKind::v, 2});
  for (int v = 2; v <= most; ++v) {
    if (wanted(v)) all.push_back({PlacementKind::loop, v});
  }
  return all;
}

std::vector<Layout> Planner::plain_layouts() const {
  const RequestScope scope{request_, cluster_, schedule_, maker_.cuttable()};
  std::vector<Layout> layouts;
  std::optional<InputError> impossible;
  for (const Shape& shape : shapes()) {
    try {
      check_request(scope, shape.kind, shape.stages_a_rank);
      for (const int stages : stage_counts(scope, shape.stages_a_rank)) {
        // Loops and Vs over one rank are nothing but more stages there.
        if (schedule_.searched && stages == shape.stages_a_rank && stages > 1) continue;
        layouts.push_back(straight_layout(shape.kind, shape.stages_a_rank, stages / shape.stages_a_rank));
      }
    } catch (const InputError& error) {
      if (!impossible) impossible = error;
    }
  }
  if (layouts.empty() && impossible) throw *impossible;
  const bool wide = std::any_of(request_.widths.begin(), request_.widths.end(), [](int w) { return w > 1; });
  if (wide) layouts.clear();
  return layouts;
}

/// Searched schedules get one device a stage.
Layouts Planner::replicated() const {
  if ((!request_.replicate && request_.widths.empty()) || schedule_.searched) return {};
  const Shape shape = shapes().front();
  LayoutLimits limits{.devices = cluster_.devices(), .most_stages = maker_.cuttable()};
  limits.stages = request_.stages;
  if (!request_.cuts.empty()) limits.stages = static_cast<int>(request_.cuts.size()) + 1;
  limits.widths = request_.widths;
  return replicated_layouts(shape.kind, shape.stages_a_rank, limits);
}

void Planner::keep(PlanCandidate candidate) {
  progress_.best = std::min(progress_.best, candidate.plan.predicted->step);
  candidates_.push_back(std::move(candidate));
}

PlanResult Planner::run() {
  const std::vector<Layout> plain = plain_layouts();
  progress_.placements = plain.size();
  take_plain(plain);
  if (schedule_.synchronous && !schedule_.searched) {
    search_by_step(plain);
  } else {
    take_widest();
  }
  if (candidates_.empty()) {
    throw RefusedError(fmt::format("no plan fits:\n  {}", fmt::join(infeasible_, "\n  ")));
  }
  // Stable: of equal steps the one with fewer stages stays first.
  std::stable_sort(candidates_.begin(), candidates_.end(),
                   [](const PlanCandidate& a, const PlanCandidate& b) {
                     return a.plan.predicted->step < b.plan.predicted->step;
                   });
  PlanResult result{std::move(candidates_.front()), {}, std::move(infeasible_), proof_};
  // One of each stage count, with and without replicas, and of each shape.
  std::set<std::tuple<std::size_t, bool, std::string>> shown;
  const auto kind = [](const PlanCandidate& candidate) {
    const Placement placement = candidate.plan.placement();
    const bool replicas = std::any_of(placement.ranks.begin(), placement.ranks.end(),
                                      [](const auto& ranks) { return ranks.size() > 1; });
    return std::tuple(placement.ranks.size(), replicas, replicas ? std::string() : candidate.placement);
  };
  shown.insert(kind(result.best));
  for (std::size_t i = 1; i < candidates_.size(); ++i) {
    if (shown.insert(kind(candidates_[i])).second) result.others.push_back(std::move(candidates_[i]));
  }
  return result;
}

void Planner::take_plain(const std::vector<Layout>& layouts) {
  for (const Layout& layout : layouts) {
    // The rest is left to the search by step, where there is one.
    const bool comes_later = schedule_.synchronous && !schedule_.searched && request_.cuts.empty();
    if (comes_later && budget_.half_spent() && !candidates_.empty()) break;
    try {
      PlanMaker::Balanced balanced = schedule_.searched ? searched(layout) : maker_.balanced(layout);
      if (balanced.candidate) {
        keep(std::move(*balanced.candidate));
      } else {
        infeasible_.push_back(std::move(balanced.reason));
      }
    } catch (const InputError& error) {  // not so many, says the schedule
      if (layouts.size() == 1) throw;
      infeasible_.push_back(fmt::format("{} stages: {}", layout.stages(), error.what()));
    }
    // An action of the program takes about as long to generate, lower and prove.
    budget_.take(static_cast<std::int64_t>(request_.micro_batches) * layout.stages() * kActions *
                 kNanoseconds);
    ++progress_.tried;
  }
}

/// Without a flush: the widths of smallest bottleneck, or those asked for.
void Planner::take_widest() {
  std::vector<Layout> layouts;
  if (!request_.widths.empty() || !request_.cuts.empty()) {
    layouts = replicated().list;
  } else if (request_.replicate && !schedule_.searched) {
    const ChainCosts repeated(maker_.repeated());
    const WidthProblem problem{.chain = repeated,
                               .network = network_,
                               .speed = cluster_.speed,
                               .devices = cluster_.devices(),
                               .cuttable = maker_.cuttable(),
                               .micro_batches = request_.micro_batches,
                               .stages = request_.stages};
    const auto widest = width_partition(problem);
    if (!widest) return;
    layouts.push_back({schedule_.placement, 1, widest->widths, 1});
    if (!layouts.front().replicated()) return;
  }
  for (const Layout& layout : layouts) {
    try {
      PlanMaker::Balanced balanced = maker_.balanced(layout);
      if (balanced.candidate) {
        keep(std::move(*balanced.candidate));
      } else {
        infeasible_.push_back(fmt::format("{}, {}", layout.name(), balanced.reason));
      }
    } catch (const InputError& error) {
      infeasible_.push_back(fmt::format("{}: {}", layout.name(), error.what()));
    }
  }
}

/// Some stage's busiest device has at least its share of all compute.
Planner::Task Planner::task_of(const Layout& layout) const {
  double fastest = 1;
  if (!cluster_.speed.empty()) fastest = *std::max_element(cluster_.speed.begin(), cluster_.speed.end());
  double shares = 0;
  for (const int width : layout.widths) {
    const int busiest = (request_.micro_batches + width - 1) / width;
    shares += fastest / busiest;
  }
  return {layout, chain_.compute(0, chain_.layers()) / shares};
}

/// Needs no program: what holds for any order.
double Planner::first_bound(const Layout& layout) const {
  const PlacedCosts placed(chain_, network_, layout.placement(), cluster_.speed);
  const OrderFreeBounds bounds = order_free_bounds(placed, request_.micro_batches, true);
  const CutSearch::Fits fits = [&](StageId, int first, int) { return first != maker_.cuttable(); };
  return CutSearch(placed, bounds, maker_.cuttable(), fits).first_bound();
}

CutSearchResult Planner::search_cuts(const Layout& layout, const Schedule& schedule, double to_beat,
                                     const CutSearchBudget& budget,
                                     const std::vector<std::vector<int>>& seeds, bool capped) const {
  const PlacedCosts placed(chain_, network_, layout.placement(), cluster_.speed);
  std::set<std::tuple<int, int, int>> refused;
  const PlanMaker::Fits possible = capped ? maker_.possible(layout, schedule) : PlanMaker::Fits{};
  const CutSearch::Fits fits = [&](StageId stage, int first, int last) {
    if (first == maker_.cuttable()) return false;
    return !possible || (possible(stage, first, last) && !refused.contains({stage.value, first, last}));
  };
  ProgramPricer pricer(
      schedule, maker_.schedule_request(layout, {request_.micro_batches}), placed,
      maker_.speeds(layout.devices()), capped ? maker_.capacity() : std::nullopt,
      [this](int first, int last) { return maker_.costs_of(first, last); },
      [&](StageId stage, int first, int last) {
        refused.insert({stage.value, first, last});
      });
  CutSearch search(placed, order_free_bounds(placed, request_.micro_batches, pricer.split()),
                   maker_.cuttable(), fits);
  return search.run(pricer, to_beat, budget, seeds);
}

/// Best first by what no layout can be below; whatever cannot beat the best plan so far is left alone.
void Planner::search_by_step(const std::vector<Layout>& plain) {
  const bool chosen = !request_.cuts.empty();
  std::vector<Task> tasks;
  for (const Layout& layout : plain) {
    if (chosen) break;
    tasks.push_back(task_of(layout));
    for (const PlanCandidate& candidate : candidates_) {
      if (candidate.plan.placement() != layout.placement()) continue;
      auto& cuts = tasks.back().seeds.emplace_back();
      for (std::size_t s = 1; s < candidate.plan.stages.size(); ++s) {
        cuts.push_back(candidate.plan.stages[s].first_layer);
      }
    }
  }
  const Layouts wide = replicated();
  for (const Layout& layout : wide.list) tasks.push_back(task_of(layout));
  std::stable_sort(tasks.begin(), tasks.end(),
                   [](const Task& a, const Task& b) { return a.bound < b.bound; });
  StepProof proof{.bound = Seconds{kInfinite}, .whole_family = wide.all, .layouts = tasks.size()};
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    Task& task = tasks[i];
    if (!(task.bound < best() * (1 - 1e-12))) break;
    if (budget_.over() && !candidates_.empty() && tasks.size() > kMostBounds) {
      proof.bound = std::min(proof.bound, Seconds{task.bound});
      break;  // the others' bounds are no lower
    }
    task.bound = std::max(task.bound, first_bound(task.layout));
    if (!(task.bound < best() * (1 - 1e-12))) continue;
    if (budget_.over() && !candidates_.empty()) {  // the others' bounds are still of use
      proof.bound = std::min(proof.bound, Seconds{task.bound});
      continue;
    }
    try {
      if (chosen) {
        PlanMaker::Balanced balanced = maker_.balanced(task.layout);
        if (balanced.candidate) {
          keep(std::move(*balanced.candidate));
        } else {
          infeasible_.push_back(std::move(balanced.reason));
        }
        continue;
      }
      const CutSearchResult found =
          search_cuts(task.layout, schedule_, best(),
                      budget_.share(tasks.size() - i, [this] { tell_progress(); }), task.seeds, true);
      budget_.take(found.work + static_cast<std::int64_t>(request_.micro_batches) * task.layout.stages() *
                                    kActions * kNanoseconds);
      proof.simulated += found.simulated;
      proof.bound = std::min(proof.bound, Seconds{std::max(found.bound, task.bound)});
      if (found.cuts) keep(maker_.priced(task.layout, maker_.plan_of(task.layout, *found.cuts)));
    } catch (const InputError& error) {  // not such widths, says the schedule
      if (task.layout.replicated())
        infeasible_.push_back(fmt::format("{}: {}", task.layout.name(), error.what()));
    }
  }
  if (chosen || candidates_.empty()) return;
  const auto best_candidate = std::min_element(
      candidates_.begin(), candidates_.end(),
      [](const auto& a, const auto& b) { return a.plan.predicted->step < b.plan.predicted->step; });
  proof.bound = std::min(proof.bound, progress_.best);
  proof.optimal = proof.bound.value >= best() * (1 - 1e-9);
  if (maker_.capacity()) {
    const auto held = std::find_if(tasks.begin(), tasks.end(), [&](const Task& task) {
      return task.layout.placement() == best_candidate->plan.placement();
    });
    const CutSearchResult free =
        search_cuts(held->layout, schedule_, best(), budget_.share(kLayoutShare, [] {}), {}, false);
    if (free.cuts && free.seconds < best() * (1 - 1e-9)) proof.without_cap = Seconds{free.seconds};
  }
  proof_ = proof;
}

/// For a searched schedule: cuts first, then the order.
PlanMaker::Balanced Planner::searched(const Layout& layout) {
  const bool chosen = !request_.cuts.empty();
  std::vector<int> cuts = request_.cuts;
  if (!chosen) {
    const auto even = maker_.even_cuts(layout);
    if (!even) return {{}, maker_.least_memory(layout)};
    cuts = cuts_of_the_others(layout, *even);
  }
  Plan plan = maker_.plan_of(layout, cuts);
  const SearchResult found = search(plan);
  PlanCandidate candidate = maker_.priced(layout, std::move(plan));
  candidate.search = found;
  if (maker_.within_cap(candidate.plan)) return {std::move(candidate), {}};
  const char* which = chosen ? "with the cuts asked for" : "cut evenly";
  return {{}, maker_.misses(candidate.plan, fmt::format("{}, {}", layout.name(), which))};
}

/// The cuts with which some other schedule of the layout's placement is fastest, so that whatever is searched
/// for begins no worse than there; the even ones if none fits.
std::vector<int> Planner::cuts_of_the_others(const Layout& layout, const std::vector<int>& even) {
  double least = kInfinite;
  std::vector<int> cuts = even;
  for (const Schedule& schedule : schedules()) {
    if (!schedule.synchronous || schedule.searched || schedule.placement != layout.kind) continue;
    try {
      const std::size_t searches = (progress_.placements - progress_.tried) * schedules().size();
      const CutSearchResult found = search_cuts(
          layout, schedule, least, budget_.share(searches, [this] { tell_progress(); }), {even}, true);
      budget_.take(found.work);
      if (!found.cuts) continue;
      least = found.seconds;
      cuts = *found.cuts;
    } catch (const InputError&) {  // not for this placement
    }
  }
  return cuts;
}

/// The plan gets the order that is found. The time there is left goes in equal parts to the placements left.
SearchResult Planner::search(Plan& plan) {
  tell_progress();
  const SearchBudget& budget = request_.search;
  SynthesisRequest request{.placement = plan.placement(),
                           .micro_batches = plan.micro_batches,
                           .clip = plan.schedule.agree_norm,
                           .costs = &*plan.costs,
                           .capacity = maker_.capacity(),
                           .recompute = plan.recompute(),
                           .budget = {.work = budget.work, .to_beat = progress_.best}};
  if (budget.time_limit) {
    const double left = std::max(0.0, (*budget.time_limit - budget_.spent()).value);
    const auto placements = static_cast<double>(progress_.placements - progress_.tried);
    const Seconds until = budget_.spent() + Seconds{left / std::max(1.0, placements)};
    request.budget.work = std::numeric_limits<std::int64_t>::max() / 4;
    request.budget.go_on = [this, until](Seconds) {
      tell_progress();
      return budget_.spent() < until;
    };
  } else {
    request.budget.go_on = [this](Seconds) {
      tell_progress();
      return true;
    };
  }
  const Synthesis found = synthesize(request);
  plan.program = planned_orders(found.program);
  return {.from = found.from, .orders = found.orders, .gap = found.gap(), .optimal = found.optimal()};
}

void Planner::tell_progress() const {
  if (request_.search.progress) request_.search.progress(progress_);
}

}  // namespace

PlanResult make_plan(const Profile& profile, const Cluster& cluster, const PlanRequest& request) {
  return Planner(profile, cluster, request).run();
}

}  // namespace stagecraft
