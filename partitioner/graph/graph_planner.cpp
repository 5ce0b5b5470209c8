#include "stagecraft/partitioner/graph/graph_planner.h"

#include "stagecraft/base/error.h"
#include "stagecraft/partitioner/compare_costs.h"
#include "stagecraft/partitioner/graph/chain.h"
#include "stagecraft/partitioner/graph/coarsening.h"
#include "stagecraft/partitioner/graph/graph_search.h"
#include "stagecraft/partitioner/planning/occupancy.h"
#include "stagecraft/schedules/costs/collectives.h"
#include "stagecraft/schedules/generators/registry.h"
#include "stagecraft/schedules/rules/reductions.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

namespace stagecraft {
namespace {

/// Steps of downsets gone over, times stages: some seconds.
constexpr std::int64_t kSearchWork = 1'500'000'000;
/// Rows that are planned, best candidates first.
constexpr std::size_t kMostPlannedRows = 4;
/// Of the work, or the time, for cuts: what other rows than the first get. That one has all the work, so that
/// no graph is planned worse than its row would be, or this share of the time.
constexpr int kCandidateShare = 16;
constexpr double kRowTime = 0.5;
/// A plan so near the bound, as a share, needs no other row.
constexpr double kClosed = 1e-3;

/// One row of the graph.
struct Row {
  std::vector<std::vector<int>> layers;
  Profile profile;
};

/// The steady-state bottleneck of a plan: of any stage, its all-reduce included, and any boundary.
double bottleneck_of(const Plan& plan) {
  const CostTable& costs = *plan.costs;
  const Placement placement = plan.placement();
  double most = 0;
  for (std::size_t s = 0; s < costs.stages.size(); ++s) {
    const StageCosts& stage = costs.stages[s];
    const std::vector<Rank> members = members_of(placement, Op::reduce, StageId{s});
    double seconds = (stage.forward + stage.backward_input + stage.backward_weight).value /
                     planning::stage_speed(members, costs.speed);
    if (members.size() > 1) {
      seconds += all_reduce(costs.network, members, stage.parameters).time().value / plan.micro_batches;
    }
    most = std::max(most, seconds);
    if (s == 0) continue;
    const planning::BoundaryOccupancy boundary(costs.network, placement.ranks[s - 1], placement.ranks[s]);
    most = std::max(most, boundary.seconds(stage.input));
  }
  return most;
}

class GraphPlanner {
 public:
  GraphPlanner(const LayerGraph& graph, const std::string& model, const Cluster& cluster,
               const PlanRequest& request)
      : planned_(without_dropped(graph)),
        model_(model),
        cluster_(cluster),
        request_(request),
        schedule_(find_schedule(request.schedule.name)) {}

  GraphPlan run() {
    if (!request_.cuts.empty()) return finished(row_of({}), std::nullopt);
    const Downsets downsets = coarsen(planned_.graph);
    blocks_ = &downsets.blocks();
    proof_.nodes = planned_.graph.nodes.size();
    proof_.blocks = downsets.blocks().size();
    proof_.downsets = downsets.size();
    proof_.step = schedule_.synchronous;
    const GraphSearchResult found = search(downsets);
    double bound = least_of_any_cuts(planned_.graph, cluster_, request_);
    if (!proof_.coarser()) bound = std::max(bound, found.bound);
    std::set<NestedCuts> seen;
    for (std::size_t n = 0; n < std::min(kMostPlannedRows, found.found.size()); ++n) {
      const GraphCandidate& candidate = found.found[n];
      if (!seen.insert(candidate.cuts).second) continue;
      PlanRequest only = shared(kCandidateShare);
      only.stages = candidate.layout.stages();
      if (candidate.layout.replicated()) {
        only.widths = candidate.layout.widths;
      } else {
        only.replicate = false;
      }
      const std::vector<int> stage = stages_of(downsets, candidate.cuts);
      Row row = row_of(stage);
      // The stages that were found, then whatever the row has that is better.
      PlanRequest exactly = only;
      exactly.cuts = cuts_of(row, stage);
      if (!exactly.cuts.empty()) plan_row(row, exactly);
      plan_row(std::move(row), only);
    }
    if (!best_ || !(value_of(best_->best.plan) <= bound * (1 + kClosed))) {
      PlanRequest whole = request_;
      if (whole.search.time_limit) whole.search.time_limit = *whole.search.time_limit * kRowTime;
      if (const std::optional<double> value = plan_row(row_of({}), whole)) {
        proof_.row = Seconds{*value};
      }
    }
    if (!best_) refuse();
    if (!best_has_runners_up_) add_runners_up();
    proof_.value = Seconds{value_of(best_->best.plan)};
    // A chain has no other cuts than those of its row, where memory counts as well.
    if (proof_.is_chain() && best_->proof) bound = std::max(bound, best_->proof->bound.value);
    proof_.bound = std::min(proof_.value, Seconds{bound});
    proof_.whole_family = found.whole_family;
    return finished(std::move(best_row_), std::move(best_));
  }

 private:
  [[nodiscard]] double value_of(const Plan& plan) const {
    return schedule_.synchronous ? plan.predicted->step.value : bottleneck_of(plan);
  }

  /// The request with a part of its budget.
  [[nodiscard]] PlanRequest shared(int share) const {
    PlanRequest request = request_;
    request.search.share_among(share);
    return request;
  }

  /// A row in which the nodes of one stage come before those of the next. `stage` may be empty.
  [[nodiscard]] Row row_of(const std::vector<int>& stage) const {
    Row row;
    if (planned_.graph.nodes.size() <= kMostBlocks) {
      row.layers = single_nodes(narrow_order(planned_.graph, stage));
    } else {
      // Blocks are in an order along the edges, and lie in one stage each.
      row.layers = blocks_ != nullptr ? *blocks_ : coarsen(planned_.graph).blocks();
      if (!stage.empty()) {
        std::ranges::stable_sort(
            row.layers, {}, [&](const std::vector<int>& block) { return stage[to_size(block.front())]; });
      }
    }
    row.profile = chain_profile(planned_, row.layers, request_.micro_batch_size);
    row.profile.model = model_;
    return row;
  }

  [[nodiscard]] std::vector<int> stages_of(const Downsets& downsets, const NestedCuts& cuts) const {
    std::vector<int> stage(planned_.graph.nodes.size(), static_cast<int>(cuts.size()));
    for (std::size_t s = cuts.size(); s-- > 0;) {
      for (const int node : downsets.nodes(cuts[s])) {
        stage[to_size(node)] = static_cast<int>(s);
      }
    }
    return stage;
  }

  /// The first layers of stages 1, 2, ...
  [[nodiscard]] static std::vector<int> cuts_of(const Row& row, const std::vector<int>& stage) {
    const auto at = [&](std::size_t layer) { return stage[to_size(row.layers[layer].front())]; };
    std::vector<int> cuts;
    for (std::size_t layer = 1; layer < row.layers.size(); ++layer) {
      if (at(layer) != at(layer - 1)) cuts.push_back(static_cast<int>(layer));
    }
    return cuts;
  }

  /// Keeps the plan if it is better than the best so far; its value, if there is one.
  std::optional<double> plan_row(Row row, const PlanRequest& request) {
    try {
      PlanResult result = make_plan(row.profile, cluster_, request);
      const Plan& plan = result.best.plan;
      const double value = value_of(plan);
      if (!best_ || result.best.step() < best_->best.step()) {
        best_ = std::move(result);
        best_row_ = std::move(row);
        best_has_runners_up_ = request.stages == request_.stages && request.cuts == request_.cuts;
      }
      return value;
    } catch (const NoPlanFits& error) {
      refused_ = error;  // the last is that of all layouts
      return std::nullopt;
    }
  }

  /// What does not fit in one row of a graph may in another, unless there are not bytes enough for any.
  [[noreturn]] void refuse() const {
    const bool nodes = planned_.graph.nodes.size() <= kMostBlocks;
    const bool of_any_row = refused_->proof() == NoPlanFits::Proof::of_any_cuts && nodes;
    if (!refused_->proved() || of_any_row || proof_.is_chain()) throw *refused_;
    std::vector<std::string> reasons{"of the graph's nodes in the order looked at last:"};
    reasons.insert(reasons.end(), refused_->reasons().begin(), refused_->reasons().end());
    throw NoPlanFits(std::move(reasons), NoPlanFits::Proof::none, refused_->searched());
  }

  /// What else the best row has to offer, and the plan again if that is better still.
  void add_runners_up() {
    PlanResult all = make_plan(best_row_.profile, cluster_, shared(kCandidateShare));
    if (!(best_->best.step() < all.best.step())) {
      best_ = std::move(all);
      return;
    }
    best_->others = std::move(all.others);
    best_->others.insert(best_->others.begin(), std::move(all.best));
    best_->infeasible = std::move(all.infeasible);
    best_->not_found = std::move(all.not_found);
    best_->proof.reset();
  }

  [[nodiscard]] GraphSearchResult search(const Downsets& downsets) const {
    PlanRequest request = request_;
    if (schedule_.searched) {
      // Cuts for it are those of another schedule; what it may take less is in no bound of that one.
      request.schedule = {};
      request.replicate = false;
      request.virtual_stages.reset();
    }
    GraphSearchResult found = search_graph(downsets, cluster_, request, kInfinite, kSearchWork);
    if (schedule_.searched) found.bound = 0;
    return found;
  }

  GraphPlan finished(Row row, std::optional<PlanResult> result) {
    if (!result) result = make_plan(row.profile, cluster_, request_);
    for (auto& layer : row.layers) {
      for (int& node : layer) node = planned_.original[to_size(node)];
    }
    return {std::move(row.profile), std::move(row.layers), std::move(*result), proof_};
  }

  const Planned planned_;
  const std::string& model_;
  const Cluster& cluster_;
  const PlanRequest& request_;
  const Schedule& schedule_;
  const Blocks* blocks_ = nullptr;
  std::optional<PlanResult> best_;
  Row best_row_;
  bool best_has_runners_up_ = false;   // all layouts were planned
  std::optional<NoPlanFits> refused_;  // why a row has no plan
  GraphProof proof_;
};

}  // namespace

GraphPlan plan_graph(const LayerGraph& graph, const std::string& model, const Cluster& cluster,
                     const PlanRequest& request) {
  return GraphPlanner(graph, model, cluster, request).run();
}

}  // namespace stagecraft
