#pragma once

// What the searches of one planning run share: the problem, how much may still be searched, what was found.

#include "partitioner/search/plan_maker.h"
#include "partitioner/search/work_budget.h"
#include "schedules/program/consecutive.h"

#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace stagecraft::planning {

/// One of so many parts of what is left a layout gets at least, while others wait.
inline constexpr int kParts = 8;

struct PlanningRun {
  /// Keeps references to all of them.
  PlanningRun(const Profile& profile, const Cluster& on, const PlanRequest& asked);

  const Cluster& cluster;
  const PlanRequest& request;
  PlanMaker maker;
  const Schedule& schedule;
  ChainCosts chain;
  Network network;
  WorkBudget budget;

  /// Why a layout has no plan; of none: of all that are not told of one by one.
  struct Refusal {
    std::optional<Layout> layout{};
    std::string reason;
    bool proved = true;  ///< nothing fits; otherwise nothing was found
  };

  std::vector<PlanCandidate> candidates;
  std::shared_ptr<PlanPricer> pricer_of_best{};  ///< without a flush: has the program of the fastest of them
  std::vector<Refusal> refusals;
  /// The best cuts of a layout for another schedule than the one asked for, in searches that did not end; where stages may
  /// have replicas, in any.
  struct OfAnother {
    Layout layout;
    const Schedule* schedule;
    CutSearchResult::Nearest nearest;
    SearchedBefore before{};
  };
  std::vector<OfAnother> of_others{};
  bool unproved = false;  ///< something of what was asked for may fit, beside what is told of
  SearchProgress progress{.best = Seconds{std::numeric_limits<double>::infinity()}};

  void keep(PlanCandidate candidate);
  /// Or the reason why there is none; whether there is one.
  bool keep(const Layout& layout, PlanMaker::Balanced balanced);
  /// In the place of what was said of the same layout before.
  void refuse(const Layout& layout, std::string reason, bool proved);
  /// Where nothing was found, or (`proved`) nothing fits: by what the cuts that need least miss, or those given. They
  /// are kept if they fit after all.
  void keep_least(const Layout& layout, const std::vector<int>& cuts, bool proved);
  [[nodiscard]] std::vector<std::string> reasons(bool proved) const;
  [[nodiscard]] double best() const { return progress.best.value; }
  /// The first layer that is not frozen.
  [[nodiscard]] int gradient_from() const { return maker.facts().gradient_from; }
  /// Whether ranks of such a placement go on from step to step without waiting for each other.
  [[nodiscard]] bool goes_on(const Placement& placement) const {
    return !request.schedule.agree_norm && can_be_followed(placement, request.micro_batches);
  }
  void tell_progress() const {
    if (request.search.progress) request.search.progress(progress);
  }
  /// What one of so many layouts gets of the budget, and at least one of so many parts.
  [[nodiscard]] CutSearchBudget share(std::size_t layouts, int parts = kParts) const {
    return budget.share(layouts, parts, [this] { tell_progress(); });
  }
  /// A plan with the same layout's cuts that takes no longer and needs less, if there is one and it is soon found.
  /// Requires a synchronous schedule that is not searched for, and one device per stage.
  [[nodiscard]] std::optional<PlanCandidate> lighter(const PlanCandidate& than) const;
  /// No plan is below the best one known either.
  void finish(StepProof& proof) const;

  struct CutPrice {
    double seconds;
    RecomputeSettings settings;
  };
  /// What cuts take, as far as one pipeline can tell; none if they do not fit or not below `to_beat`.
  [[nodiscard]] std::optional<CutPrice> price(const Layout& layout, const std::vector<int>& cuts,
                                              double to_beat) const;
  /// The best cuts of a layout for a schedule, if any are below `to_beat`; `capped`: among those that fit;
  /// `by_replica`: as far as one pipeline can tell (program_pricer.h). Of several stages per rank, where nothing
  /// fits or is found, with the cuts that came nearest.
  [[nodiscard]] CutSearchResult search_cuts(const Layout& layout, const Schedule& for_schedule,
                                            double to_beat, const CutSearchBudget& share,
                                            const std::vector<std::vector<int>>& seeds, bool capped,
                                            bool by_replica = false) const;
};

/// Goes over the layouts with one device per stage and the wide ones. The candidates of `run` seed the search, and
/// what is found goes there; the proof is there where cuts were searched for and something fits.
[[nodiscard]] std::optional<StepProof> search_layouts(PlanningRun& run, const std::vector<Layout>& plain,
                                                      const Layouts& wide);

/// By classes, where there are too many layouts to look at each. The best plans go to `run`.
[[nodiscard]] StepProof search_classes(PlanningRun& run);

}  // namespace stagecraft::planning
