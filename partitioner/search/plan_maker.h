#pragma once

// From a layout and cuts to a plan with its price: what the search hands back and tells people.

#include "partitioner/plan/plan_pricer.h"
#include "partitioner/plan/stage_memory.h"
#include "partitioner/search/layout.h"
#include "partitioner/search/planner.h"
#include "partitioner/search/program_facts.h"
#include "partitioner/search/stage_settings.h"
#include "partitioner/search/stage_table.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace stagecraft::planning {

class PlanMaker {
 public:
  /// Keeps references to all of them.
  PlanMaker(const Profile& profile, const Cluster& cluster, const PlanRequest& request);

  [[nodiscard]] const Measurement& measurement() const { return measurement_; }
  /// With the forwards that every stage repeats at least counted as part of the backward.
  [[nodiscard]] const Measurement& repeated() const { return repeated_; }
  [[nodiscard]] const Schedule& schedule() const { return schedule_; }
  [[nodiscard]] const ProgramFacts& facts() const { return facts_; }
  /// Of the settings that stages may have the one that needs least.
  [[nodiscard]] Recompute least_memory_setting() const { return allowed_.back(); }
  [[nodiscard]] bool chooses_recompute() const { return allowed_.size() > 1; }
  [[nodiscard]] std::optional<Bytes> capacity() const { return capacity_; }
  [[nodiscard]] int layers() const { return layers_; }
  /// The loss is no layer of the model: it stays with the layer before it. Cuts lie before.
  [[nodiscard]] int cuttable() const { return cuttable_; }
  [[nodiscard]] double optimizer_factor() const { return profile_.optimizer_bytes_per_parameter_byte; }
  /// Whether a backward of the schedule's programs may be in two parts.
  [[nodiscard]] bool splits_backwards() const;
  [[nodiscard]] const StageCosts& costs_of(int first, int last) const { return stages_.at(first, last); }
  [[nodiscard]] StageTable& stages() const { return stages_; }

  [[nodiscard]] ScheduleRequest schedule_request(const Layout& layout, std::vector<int> groups,
                                                 RecomputeSettings settings) const;
  /// Whether layers can be a stage of any schedule, as far as one micro-batch needs memory.
  [[nodiscard]] bool may_fit(int first, int last) const {
    return !capacity_ || stage_memory().at(first, last).peak(StageCounts{}) <= *capacity_;
  }
  /// Why nothing fits so many devices, whatever the stages, their replicas, the order and what is repeated; none: as
  /// far as is known without a search something may. Every layer's weights, gradients and optimizer state lie on
  /// some device, and layers are not cut.
  [[nodiscard]] std::optional<std::string> impossible_on(int devices) const;
  /// What stages may be, by the loss and by memory that no proof can go below, with the request's schedule or
  /// another one. `capped`: whether there is a cap at all; `alone`: see StageSettings.
  [[nodiscard]] StageSettings settings(const Layout& layout, const Schedule& schedule, bool capped,
                                       bool alone = true) const;

  [[nodiscard]] Plan plan_of(const Layout& layout, const std::vector<int>& cuts,
                             const RecomputeSettings& settings) const;
  /// The plan, predicted and explained. Its memory is not compared with the cap.
  [[nodiscard]] PlanCandidate priced(const Layout& layout, Plan plan) const;
  /// With a pricer of this plan, for who prices more with it.
  [[nodiscard]] PlanCandidate priced(const Layout& layout, Plan plan, PlanPricer& pricer) const;

  /// The cuts of smallest bottleneck among the stages that may be.
  [[nodiscard]] std::optional<std::vector<int>> even_cuts(const Layout& layout,
                                                          const StageSettings& settings) const;
  /// Cuts that are likely to fit and not slow: those of smallest bottleneck, and those that need least memory.
  [[nodiscard]] std::vector<std::vector<int>> likely_cuts(const Layout& layout) const;
  /// Ranks that need more than there is.
  [[nodiscard]] std::vector<Rank> over_cap(const Plan& plan) const;
  /// With the recomputes with which these cuts need least; empty cuts: those that need least by the bound. A searched
  /// schedule's order runs one micro-batch at a time.
  [[nodiscard]] PlanCandidate least(const Layout& layout, std::vector<int> cuts) const;
  /// What it misses, and what no cuts need less than, where that is less. `proved`: none fit.
  [[nodiscard]] std::string misses_least(const Layout& layout, const PlanCandidate& least, bool proved) const;
  /// Whether it is known without a search that no cuts fit, whatever the order.
  [[nodiscard]] bool none_can_fit(const Layout& layout) const {
    return capacity_ && least_of_any_cuts(layout) > *capacity_;
  }

  /// The plan of the request's own cuts or of smallest bottleneck, or why none fits.
  struct Balanced {
    std::optional<PlanCandidate> candidate;
    std::string reason;
    bool proved = true;                    ///< where there is no candidate: none fits
    std::shared_ptr<PlanPricer> pricer{};  ///< without a flush: has the candidate's program
  };
  [[nodiscard]] Balanced balanced(const Layout& layout) const;

  /// `than` with other cuts, where its step is shorter so, or as short and it needs less, and it fits; `pricer` is of a
  /// plan of the layout. Throws InputError where the schedule does not take such stages.
  [[nodiscard]] std::optional<PlanCandidate> better_with(const std::vector<int>& cuts, const Layout& layout,
                                                         const PlanCandidate& than, PlanPricer& pricer) const;
  /// What that takes, in nanoseconds, about.
  [[nodiscard]] static double price_of_cuts(const PlanPricer& pricer);

  /// "3 stages: cut evenly (2,4), stage 1 (a .. b) needs 3 MiB, 1 MiB more than the 2 MiB a device has".
  [[nodiscard]] std::string misses(const Plan& plan, const std::string& which) const;

 private:
  /// Of the plans of the same bottleneck, as far as they are looked at, the one of the shortest simulated step, of these
  /// the one that needs least. `first` is one of them, and fits; `pricer` has its program.
  [[nodiscard]] PlanCandidate best_of_ties(const Layout& layout, StageSettings& settings, PlanCandidate first,
                                           PlanPricer& pricer) const;
  /// The cuts with which the stage that needs most, by what it holds at least, needs least.
  [[nodiscard]] std::vector<int> least_memory_cuts(const Layout& layout) const;
  [[nodiscard]] const StageMemoryTable& stage_memory() const;
  struct MemoryCosts;
  [[nodiscard]] MemoryCosts memory_costs(const Layout& layout) const;
  /// What every stage holds at least. An order that follows the costs is not known before the cuts are.
  [[nodiscard]] std::vector<StageCounts> least_counts(const Layout& layout, const Schedule& schedule,
                                                      Recompute setting) const;
  /// Some rank needs so much, whatever the cuts: a stage by itself, or its share of what all layers hold all the time.
  [[nodiscard]] Bytes least_of_any_cuts(const Layout& layout) const;
  [[nodiscard]] std::string bound_by(const Plan& plan) const;

  const Profile& profile_;
  const Cluster& cluster_;
  const PlanRequest& request_;
  const Measurement& measurement_;
  std::vector<Recompute> allowed_;
  Measurement repeated_;
  const Schedule& schedule_;
  std::optional<Bytes> capacity_;
  int layers_;
  int cuttable_;
  ProgramFacts facts_;
  Network network_;
  mutable std::optional<StageMemoryTable> memory_;  // made when asked for
  mutable StageTable stages_;
};

}  // namespace stagecraft::planning
