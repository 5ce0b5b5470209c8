#include "partitioner/advice/explain.h"

#include "base/statistics.h"
#include "partitioner/search/plan_maker.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace stagecraft {
namespace {

// Nanoseconds per action, about: simulated with its longest chain, proved, and generated and lowered.
constexpr std::int64_t kChained = 30;
constexpr std::int64_t kProved = 150;
constexpr std::int64_t kMade = 2'000;
/// Of the request's budget, what moved cuts may take.
constexpr std::int64_t kShare = 4;
/// Following every wait of a longer program would take gigabytes.
constexpr std::size_t kMostFollowed = 3'000'000;
/// As many stages are made a tenth faster.
constexpr std::size_t kMostTenths = 5;

class Explainer {
 public:
  Explainer(const Profile& profile, const PlanRequest& request, const Cluster& cluster, const Plan& plan)
      : maker_(profile, cluster, request),
        plan_(plan),
        placement_(plan.placement()),
        pricer_(plan),
        step_(pricer_.step(*plan.costs)),
        chain_(pricer_.chain(*plan.costs)) {}

  void cuts(std::int64_t work, Explanation& to) {
    const std::int64_t a_move =
        static_cast<std::int64_t>(pricer_.actions()) *
        (kChained + (plan_.capacity ? kProved : 0) + (pricer_.made_anew() ? 3 * kMade : 0));
    const auto most = to_size(std::max<std::int64_t>(1, work / std::max<std::int64_t>(2 * a_move, 1)));
    // Those beside the busiest stages first.
    const std::vector<Seconds> busy = this->busy(plan_);
    std::vector<std::size_t> stages(plan_.stages.size() - 1);
    std::iota(stages.begin(), stages.end(), std::size_t{1});
    const auto beside = [&](std::size_t stage) { return std::max(busy[stage - 1], busy[stage]); };
    std::ranges::stable_sort(stages, std::greater{}, beside);
    to.cuts_left_out = static_cast<int>(stages.size() - std::min(stages.size(), most));
    stages.resize(std::min(stages.size(), most));
    std::ranges::sort(stages);
    for (const std::size_t stage : stages) {
      const int layer = plan_.stages[stage].first_layer;
      to.cuts.push_back({layer, StageId{stage}, plan_.costs->stages[stage].input, moved(stage, layer - 1),
                         moved(stage, layer + 1)});
    }
  }

  [[nodiscard]] std::vector<Sensitivity> tenths() {
    constexpr double kFaster = 1 / 1.1;
    std::vector<Sensitivity> all;
    for (const ChainPart& part : chain_) {
      if (part.kind != ChainPart::Kind::compute || all.size() == kMostTenths) continue;
      CostTable costs = *plan_.costs;
      StageCosts& stage = costs.stages[part.stage->index()];
      for (Seconds* time : {&stage.forward, &stage.backward_input, &stage.backward_weight}) {
        *time = *time * kFaster;
      }
      all.push_back({part.stage, {}, change(pricer_.step(costs))});
    }
    for (std::size_t level = 0; level < plan_.costs->network.levels.size(); ++level) {
      if (plan_.costs->network.levels[level].count < 2) continue;
      CostTable costs = *plan_.costs;
      Link& link = costs.network.levels[level].link;
      link.latency = link.latency * kFaster;
      link.bytes_per_second /= kFaster;
      all.push_back({{}, static_cast<int>(level), change(pricer_.step(costs))});
    }
    return all;
  }

  [[nodiscard]] std::optional<RankTime> rank() {
    if (pricer_.actions() > kMostFollowed) return std::nullopt;
    return RankTime{pricer_.busy(*plan_.costs), pricer_.lost(*plan_.costs)};
  }

  [[nodiscard]] Seconds step() const { return step_; }
  [[nodiscard]] const std::vector<ChainPart>& chain() const { return chain_; }

 private:
  /// None where a stage would be without a layer, or have nothing but the loss.
  [[nodiscard]] std::optional<MovedCut> moved(std::size_t stage, int layer) {
    Plan plan = plan_;
    StagePlan& before = plan.stages[stage - 1];
    StagePlan& behind = plan.stages[stage];
    if (layer <= before.first_layer || layer >= behind.last_layer || layer == maker_.cuttable())
      return std::nullopt;
    before.last_layer = behind.first_layer = layer;
    for (const std::size_t s : {stage - 1, stage}) {
      plan.costs->stages[s] = maker_.costs_of(plan.stages[s].first_layer, plan.stages[s].last_layer);
    }
    MovedCut cut;
    cut.layer = layer;
    cut.crossing = plan.costs->stages[stage].input;
    cut.step = pricer_.step(*plan.costs);
    cut.change = change(cut.step);
    cut.grown = most_grown(pricer_.chain(*plan.costs));
    if (cut.grown && cut.grown->kind == ChainPart::Kind::compute) {
      const std::vector<Seconds> busy = this->busy(plan);
      cut.busiest = busy[cut.grown->stage->index()] >= std::ranges::max(busy);
    }
    cut.misses = miss(*plan.costs);
    return cut;
  }

  [[nodiscard]] std::optional<MemoryMiss> miss(const CostTable& costs) {
    if (!plan_.capacity) return std::nullopt;
    const std::vector<Bytes> memory = pricer_.memory(costs);
    const auto most = std::ranges::max_element(memory);
    if (*most <= *plan_.capacity) return std::nullopt;
    const Rank rank{to_size(most - memory.begin())};
    return MemoryMiss{rank, placement_.stages_of(rank), *most, *plan_.capacity};
  }

  [[nodiscard]] std::optional<ChainPart> most_grown(const std::vector<ChainPart>& chain) const {
    std::optional<ChainPart> most;
    for (const ChainPart& part : chain) {
      ChainPart grown = part;
      for (const ChainPart& before : chain_) {
        if (before.same_thing(part)) grown.seconds -= before.seconds;
      }
      if (grown.seconds > step_ * 1e-9 && (!most || grown.seconds > most->seconds)) most = grown;
    }
    return most;
  }

  /// A micro-batch, of the rank that holds the stage and is slowest.
  [[nodiscard]] std::vector<Seconds> busy(const Plan& plan) const {
    const std::vector<Seconds> ranks = plan.compute_of_ranks();
    std::vector<Seconds> stages;
    for (const StagePlan& stage : plan.stages) {
      Seconds& most = stages.emplace_back();
      for (const Rank rank : stage.ranks) most = std::max(most, ranks[rank.index()]);
    }
    return stages;
  }

  [[nodiscard]] double change(Seconds step) const { return relative_change(step_.value, step.value); }

  planning::PlanMaker maker_;
  const Plan& plan_;
  Placement placement_;
  PlanPricer pricer_;
  Seconds step_;
  std::vector<ChainPart> chain_;
};

bool memory_binds(const PlanResult& result, const Explanation& explained) {
  if (!result.infeasible.empty() || !result.not_found.empty() || any_recompute(result.best.plan.recompute()))
    return true;
  if (result.proof && result.proof->without_cap) return true;
  return std::ranges::any_of(explained.cuts, [](const CutExplanation& cut) {
    return (cut.earlier && cut.earlier->misses) || (cut.later && cut.later->misses);
  });
}

bool alike(const LayerProfile& a, const LayerProfile& b) {
  return a.parameters == b.parameters && a.output == b.output && a.kept_for_input == b.kept_for_input;
}

/// None of a model that has few equal layers.
std::vector<LoneLayer> lone_layers(const std::vector<LayerProfile>& layers) {
  constexpr double kSomething = 0.005;  // of the compute or of the parameters
  std::vector<LoneLayer> lone;
  Seconds compute;
  Bytes parameters;
  std::size_t equal = 0;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const LayerProfile& layer = layers[i];
    const Seconds own = layer.forward.median + layer.backward_input.median + layer.backward_weight.median;
    compute += own;
    parameters += layer.parameters;
    if (std::ranges::count_if(layers, [&](const LayerProfile& other) { return alike(layer, other); }) > 1) {
      ++equal;
    } else {
      lone.push_back({static_cast<int>(i), own, 0, layer.parameters});
    }
  }
  if (equal < lone.size()) return {};
  for (LoneLayer& layer : lone) layer.share = compute > Seconds{} ? layer.compute / compute : 0;
  std::erase_if(lone, [&](const LoneLayer& layer) {
    return layer.share < kSomething &&
           static_cast<double>(layer.parameters.value) < kSomething * static_cast<double>(parameters.value);
  });
  return lone;
}

}  // namespace

Explanation explain(const Profile& profile, const Cluster& cluster, const PlanResult& result,
                    const PlanRequest& request, const WhatIfProgress& progress) {
  const SearchBudget& search = request.search;
  const std::int64_t work = search.time_limit
                                ? static_cast<std::int64_t>(std::min(search.time_limit->value, 1e6) * 1e9)
                                : search.cut_work;
  const Plan& plan = result.best.plan;
  Explanation explained;
  explained.agreement = agreement_cost(plan);
  explained.lone_layers = lone_layers(profile.at(plan.micro_batch_size).layers);
  {
    Explainer explainer(profile, request, cluster, plan);
    explained.step = explainer.step();
    explainer.cuts(work / kShare, explained);
    explained.chain = explainer.chain();
    explained.rank = explainer.rank();
    explained.tenths = explainer.tenths();
  }
  explained.what_if = what_if(profile, cluster, request, plan, memory_binds(result, explained), progress);
  return explained;
}

}  // namespace stagecraft
