#include "test/engine/case_list.h"

#include "schedules/generators/registry.h"
#include "test/support/full.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>

namespace stagecraft::test {
namespace {

constexpr int kMostStages = 9;  // layers of the smallest model

/// Of the cases that come one after the other; float16 where there is a moment to agree on overflows, oneDNN's
/// products in every eighth.
PrecisionKind precision_in_turn(std::size_t turn, bool agrees) {
  if (turn % 4 == 1) return PrecisionKind::bf16;
  if (turn % 8 == 2) return PrecisionKind::onednn;
  return turn % 4 == 3 && agrees ? PrecisionKind::fp16 : PrecisionKind::single;
}

/// The same of the types in which a model was captured.
PrecisionKind captured_precision(ModelKind model, std::size_t turn, bool agrees) {
  if (turn % 3 == 0) return PrecisionKind::onednn;
  if (model == ModelKind::lengths) return PrecisionKind::single;
  if (turn % 3 == 1) return PrecisionKind::bf16;
  return model == ModelKind::tied && agrees ? PrecisionKind::fp16 : PrecisionKind::single;
}

/// What a layer, a rank or an optimizer may do wrong, with the schedules that each have something of their own. Dropout
/// draws by layer, step and sample, whatever the shape and the optimizer are: it takes turns, and meets each value of
/// every other dimension.
void add_matrix(std::vector<PipelineCase>& cases, int stages) {
  struct Rule {
    const char* schedule;
    bool vertical_sync;
    double clipping;
  };
  for (const Rule& rule :
       {Rule{"fill_drain", false, 0}, Rule{"fill_drain", false, 0.05}, Rule{"1f1b", false, 0},
        Rule{"1f1b", false, 0.05}, Rule{"pipedream", false, 0}, Rule{"pipedream", true, 0}}) {
    for (const ModelKind model : {ModelKind::mlp, ModelKind::convnet, ModelKind::gpt}) {
      for (const BatchShape shape : {BatchShape::even, BatchShape::short_ends, BatchShape::few}) {
        for (const CaseOptimizer optimizer :
             {CaseOptimizer::sgd, CaseOptimizer::adam, CaseOptimizer::adamw}) {
          const std::size_t turn = cases.size();
          cases.push_back({.schedule = rule.schedule,
                           .vertical_sync = rule.vertical_sync,
                           .stages = stages,
                           .model = model,
                           .shape = shape,
                           .optimizer = optimizer,
                           .precision = precision_in_turn(turn, rule.clipping > 0),
                           .dropout = turn / 5 % 2 == 0,  // 5: with every precision, too
                           .clipping = rule.clipping,
                           .delay_seed = turn});
        }
      }
    }
  }
}

/// The variants of a schedule: as it is, and with each option that it takes.
std::vector<PipelineCase> variants(const Schedule& schedule) {
  std::vector<PipelineCase> all{{.schedule = schedule.name}};
  if (schedule.takes_vertical_sync) all.push_back({.schedule = schedule.name, .vertical_sync = true});
  if (schedule.takes_warmup_extra) all.push_back({.schedule = schedule.name, .warmup_extra = 2});
  return all;
}

/// A program's number of stages, placement, rewrite, recomputation and shape, in all combinations that the schedule serves; of many,
/// every second: as on a chessboard, each way to rewrite and recompute meets each shape at every second number of ranks,
/// and two of the shapes at each. The ways know nothing of shapes; both know of ranks.
std::vector<PipelineCase> programs(PipelineCase next, int ranks, int stages_per_rank, PlacementKind kind) {
  constexpr std::size_t kMany = 6;  // twice as many as there are kinds of models
  std::vector<PipelineCase> all;
  std::vector<PipelineCase> half;
  next.stages = ranks * stages_per_rank;
  next.ranks = ranks;
  next.placement = kind;
  for (const auto& [rewrite, recompute] :
       {std::pair{Rewrite::none, Recompute::none}, std::pair{Rewrite::split, Recompute::none},
        std::pair{Rewrite::none, Recompute::all}, std::pair{Rewrite::split, Recompute::all_but_last}}) {
    for (const BatchShape shape :
         {BatchShape::even, BatchShape::short_ends, BatchShape::few, BatchShape::many}) {
      next.rewrite = rewrite;
      next.recompute = recompute;
      next.shape = shape;
      if (!served(next)) continue;
      all.push_back(next);
      const int changes = (rewrite == Rewrite::none ? 0 : 1) + (recompute == Recompute::none ? 0 : 1);
      if ((changes + static_cast<int>(shape) + ranks) % 2 == 0) half.push_back(next);
    }
  }
  return all.size() < kMany ? all : half;
}

/// What a program may do wrong, with every schedule there is. Models, optimizers, dropout and clipping take
/// turns.
void add_programs(std::vector<PipelineCase>& cases, const Schedule& schedule, int ranks) {
  constexpr std::array<std::pair<int, PlacementKind>, 4> kPlacements{{{1, PlacementKind::straight},
                                                                      {2, PlacementKind::loop},
                                                                      {2, PlacementKind::v},
                                                                      {3, PlacementKind::loop}}};
  for (const PipelineCase& variant : variants(schedule)) {
    for (const auto& [stages_per_rank, kind] : kPlacements) {
      if (ranks * stages_per_rank > kMostStages) continue;
      for (PipelineCase& next : programs(variant, ranks, stages_per_rank, kind)) {
        const std::size_t turn = cases.size();
        next.model = static_cast<ModelKind>(turn % 3);
        next.optimizer = static_cast<CaseOptimizer>(turn / 3 % kCaseOptimizers);
        next.precision = precision_in_turn(turn / 5, schedule.clips);
        next.dropout = turn % 2 == 0;
        next.clipping = schedule.clips && turn % 5 < 3 ? 0.05 : 0;
        next.delay_seed = turn;
        cases.push_back(next);
      }
    }
  }
}

/// Every schedule with stages of several replicas: fewer micro-batches than replicas, numbers that no number of them
/// divides, a rank that is the last stage and the one that prints. Models, optimizers and dropout take turns.
void add_replicas(std::vector<PipelineCase>& cases, const Schedule& schedule, int ranks) {
  const std::vector<std::vector<int>> all{{2},    {3},    {4},       {2, 1},    {1, 2}, {3, 1},
                                          {1, 3}, {2, 2}, {2, 1, 1}, {1, 2, 1}, {2, 3}, {3, 2}};
  for (PipelineCase next : variants(schedule)) {
    for (const std::vector<int>& widths : all) {
      if (std::accumulate(widths.begin(), widths.end(), 0) != ranks) continue;
      for (const BatchShape shape :
           {BatchShape::even, BatchShape::short_ends, BatchShape::few, BatchShape::many}) {
        const std::size_t turn = cases.size();
        next.widths = widths;
        next.stages = static_cast<int>(widths.size()) * schedule.virtual_stages;
        next.placement = schedule.placement;
        next.recompute = turn % 4 == 0 ? Recompute::all_but_last : Recompute::none;
        next.model = static_cast<ModelKind>(turn % 3);
        next.shape = shape;
        next.optimizer = static_cast<CaseOptimizer>(turn / 3 % kCaseOptimizers);
        next.precision = precision_in_turn(turn / 5, schedule.clips);
        next.dropout = turn % 2 == 0;
        next.clipping = schedule.clips && turn % 5 < 3 ? 0.05 : 0;
        next.delay_seed = turn;
        if (next.stages <= kMostStages && served(next)) cases.push_back(next);
      }
    }
  }
}

/// A model captured from PyTorch, with every schedule that can run it, at every number of ranks and stages, recomputed and with
/// replicas. Shapes and optimizers take turns.
void add_captured(std::vector<PipelineCase>& cases, const Schedule& schedule, int ranks, ModelKind model) {
  for (PipelineCase next : variants(schedule)) {
    next.model = model;
    const bool one_version = schedule.reads_one_version({.vertical_sync = next.vertical_sync});
    if (model == ModelKind::tied && !one_version) continue;
    next.dropout = true;
    const auto add = [&] {
      const std::size_t turn = cases.size();
      next.shape = static_cast<BatchShape>(turn % 4);
      if (!served(next)) next.shape = BatchShape::many;
      next.precision = captured_precision(model, turn, schedule.clips);
      next.optimizer = static_cast<CaseOptimizer>(turn / 4 % kCaseOptimizers);
      next.clipping = schedule.clips && turn % 5 < 3 ? 0.05 : 0;
      next.delay_seed = turn;
      if (served(next)) cases.push_back(next);
    };
    next.placement = schedule.placement;
    for (const auto& [rewrite, recompute] :
         {std::pair{Rewrite::none, Recompute::none}, std::pair{Rewrite::split, Recompute::none},
          std::pair{Rewrite::none, Recompute::all}, std::pair{Rewrite::split, Recompute::all_but_last}}) {
      next.rewrite = rewrite;
      next.recompute = recompute;
      next.ranks = ranks;
      next.stages = ranks * schedule.virtual_stages;
      if (next.stages <= kMostStages) add();
    }
    next.rewrite = Rewrite::none;
    next.ranks = 0;
    for (const std::vector<int>& widths : {std::vector{2}, {2, 1}, {1, 2}, {1, 3}, {2, 2}, {2, 1, 1}}) {
      next.recompute = next.recompute == Recompute::none ? Recompute::all : Recompute::none;
      next.widths = widths;
      next.stages = static_cast<int>(widths.size()) * schedule.virtual_stages;
      if (std::accumulate(widths.begin(), widths.end(), 0) == ranks) add();
    }
  }
}

/// What a cover has to have of a case.
std::vector<std::string> traits_of(Cover cover, const PipelineCase& c) {
  const int ranks = c.ranks == 0 ? c.stages : c.ranks;
  const std::vector<std::string> values{
      fmt::format("{} {} {}", c.schedule, c.vertical_sync, c.warmup_extra),
      fmt::format("{} for each, {}", c.widths.empty() ? c.stages / ranks : 0, static_cast<int>(c.placement)),
      fmt::format("{}, {}", ranks, fmt::join(c.widths, "-")),
      fmt::format("{} {}", static_cast<int>(c.rewrite), static_cast<int>(c.recompute)),
      fmt::format("{}", static_cast<int>(c.shape)),
      fmt::format("{}", static_cast<int>(c.model)),
      fmt::format("{}", static_cast<int>(c.optimizer)),
      fmt::format("{}", static_cast<int>(c.precision)),
      fmt::format("{}", c.dropout),
      fmt::format("{}", c.clipping > 0),
      fmt::format("{}", c.frozen)};
  std::vector<std::string> traits{fmt::format("{} with {} frozen layers", values[0], c.frozen)};
  if (cover == Cover::values) traits.push_back(fmt::format("layout {} on {}", values[1], values[2]));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (cover == Cover::values) traits.push_back(fmt::format("{}: {}", i, values[i]));
    for (std::size_t j = 0; cover == Cover::pairs && j < i; ++j) {
      traits.push_back(fmt::format("{}: {}, {}: {}", j, values[j], i, values[i]));
    }
  }
  const Schedule& schedule = find_schedule(c.schedule);
  if (cover == Cover::pairs && c.widths.empty() && c.placement == schedule.placement &&
      c.stages == ranks * schedule.virtual_stages) {
    traits.push_back(fmt::format("at home {} on {}: {}", values[0], ranks, c.rewrite == Rewrite::none));
    traits.push_back(fmt::format("at home {} with {}", values[0], static_cast<int>(c.model)));
  }
  return traits;
}

}  // namespace

PipelineCase at_home(const Schedule& schedule, int ranks) {
  return {.schedule = schedule.name,
          .stages = ranks * schedule.virtual_stages,
          .ranks = ranks,
          .placement = schedule.placement,
          .shape = BatchShape::many};
}

std::vector<PipelineCase> captured_cases(int ranks) {
  std::vector<PipelineCase> cases;
  for (const Schedule& schedule : schedules()) add_captured(cases, schedule, ranks, ModelKind::captured);
  return cases;
}

std::vector<PipelineCase> tied_cases(int ranks) {
  std::vector<PipelineCase> cases;
  for (const Schedule& schedule : schedules()) add_captured(cases, schedule, ranks, ModelKind::tied);
  return cases;
}

std::vector<PipelineCase> skip_cases() {
  std::vector<PipelineCase> cases;
  for (const Schedule& schedule : schedules()) {
    if (schedule.searched) continue;
    const int ranks = 4 / schedule.virtual_stages;
    PipelineCase next{.schedule = schedule.name,
                      .stages = 4,
                      .ranks = ranks,
                      .placement = schedule.placement,
                      .cuts = {3, 5, 6},
                      // Layer 5 alone passes by what layer 4 makes and layer 6 reads.
                      .skips = {{StageId{1}, StageId{3}}},
                      .model = ModelKind::captured,
                      .shape = BatchShape::short_ends,
                      .optimizer = CaseOptimizer::adamw,
                      .dropout = true};
    if (served(next)) cases.push_back(next);
    next.recompute = Recompute::all;
    if (ranks == 4) next.widths = {2, 1, 1, 2};
    if (ranks == 4) next.ranks = 0;
    if (served(next)) cases.push_back(next);
  }
  return cases;
}

std::vector<PipelineCase> lengths_cases(int ranks) {
  std::vector<PipelineCase> cases;
  for (const Schedule& schedule : schedules()) add_captured(cases, schedule, ranks, ModelKind::lengths);
  return cases;
}

std::vector<PipelineCase> frozen_cases(int ranks) {
  std::vector<PipelineCase> cases;
  for (const Schedule& schedule : schedules()) {
    for (const PipelineCase& variant : variants(schedule)) {
      for (const int frozen : {1, 4, 7}) {
        const auto add = [&](PipelineCase next) {
          const std::size_t turn = cases.size();
          next.frozen = frozen;
          next.model = static_cast<ModelKind>(turn % 3);
          next.shape = static_cast<BatchShape>(turn / 3 % 4);
          next.optimizer = static_cast<CaseOptimizer>(turn % kCaseOptimizers);
          next.precision = precision_in_turn(turn / 2, schedule.clips);
          next.dropout = turn % 2 == 0;
          next.clipping = schedule.clips && turn % 5 < 2 ? 0.05 : 0;
          next.delay_seed = turn;
          if (!served(next)) next.shape = BatchShape::many;
          if (next.stages <= kMostStages && served(next)) cases.push_back(next);
        };
        PipelineCase next = variant;
        next.placement = schedule.placement;
        next.stages = ranks * schedule.virtual_stages;
        next.ranks = ranks;
        add(next);
        next.recompute = Recompute::all;
        next.rewrite = Rewrite::split;
        add(next);
        next.rewrite = Rewrite::none;
        next.ranks = 0;
        if (ranks < 3) continue;
        for (const std::vector<int>& widths : {std::vector{2, 1}, {1, 2}, {2, 2}, {1, 2, 1}}) {
          if (std::accumulate(widths.begin(), widths.end(), 0) != ranks) continue;
          next.widths = widths;
          next.stages = static_cast<int>(widths.size()) * schedule.virtual_stages;
          next.recompute = next.recompute == Recompute::none ? Recompute::all_but_last : Recompute::none;
          add(next);
        }
      }
    }
  }
  return cases;
}

std::vector<PipelineCase> all_cases(int ranks) {
  std::vector<PipelineCase> cases;
  add_matrix(cases, ranks);
  for (const Schedule& schedule : schedules()) add_programs(cases, schedule, ranks);
  for (const Schedule& schedule : schedules()) add_replicas(cases, schedule, ranks);
  for (const Schedule& schedule : schedules()) add_captured(cases, schedule, ranks, ModelKind::captured);
  return cases;
}

std::vector<PipelineCase> covering(Cover cover, const std::vector<int>& ranks) {
  std::vector<PipelineCase> cases;
  for (const int of : ranks) {
    const std::vector<PipelineCase> more = all_cases(of);
    cases.insert(cases.end(), more.begin(), more.end());
  }
  return covering(cover, cases);
}

std::vector<PipelineCase> covering(Cover cover, const std::vector<PipelineCase>& cases) {
  if (full()) return cases;
  std::map<std::string, std::size_t> known;
  std::vector<std::vector<std::size_t>> traits;
  for (const PipelineCase& one : cases) {
    std::vector<std::size_t>& its = traits.emplace_back();
    for (const std::string& trait : traits_of(cover, one))
      its.push_back(known.try_emplace(trait, known.size()).first->second);
  }
  std::vector<PipelineCase> kept;
  for (std::vector<bool> seen(known.size());;) {
    std::size_t most = 0, chosen = 0;  // the first of those with the most new traits
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const auto fresh = static_cast<std::size_t>(
          std::count_if(traits[i].begin(), traits[i].end(), [&](std::size_t trait) { return !seen[trait]; }));
      if (fresh > most) std::tie(most, chosen) = std::tuple{fresh, i};
    }
    if (most == 0) return kept;
    for (const std::size_t trait : traits[chosen]) seen[trait] = true;
    kept.push_back(cases[chosen]);
  }
}

std::vector<PipelineCase> straggler_cases(int ranks) {
  std::vector<PipelineCase> cases;
  for (const Schedule& schedule : schedules()) {
    PipelineCase next{.schedule = schedule.name,
                      .stages = ranks * schedule.virtual_stages,
                      .ranks = ranks,
                      .placement = schedule.placement,
                      .model = ModelKind::straggler,
                      .shape = BatchShape::many,
                      .optimizer = CaseOptimizer::adamw};
    if (next.stages <= kMostStages && served(next)) cases.push_back(next);
    next.ranks = 0;
    next.widths.assign(static_cast<std::size_t>(std::max(1, ranks - 1)), 1);
    next.widths.front() = ranks - static_cast<int>(next.widths.size()) + 1;
    next.stages = static_cast<int>(next.widths.size()) * schedule.virtual_stages;
    if (ranks > 1 && next.stages <= kMostStages && served(next)) cases.push_back(next);
  }
  return cases;
}

}  // namespace stagecraft::test
