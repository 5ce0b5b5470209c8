#include "engine/run/show/slow_ranks.h"

#include "base/core_share.h"
#include "base/files.h"
#include "base/statistics.h"
#include "base/table.h"
#include "engine/records/report/measured_stages.h"
#include "engine/run/resolve/plan_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <thread>
#include <utility>

namespace stagecraft {
namespace {

bool is_worth(const BetterPlan& other) {
  constexpr double kLeastGain = 0.01;
  return other.gain > (other.plan.predicted->step + other.gain) * kLeastGain;
}

/// Of the others: with two ranks that is the other one.
double pace_beside(const std::vector<RankPace>& all, Rank rank) {
  std::vector<double> others;
  for (const RankPace& pace : all) {
    if (pace.rank != rank) others.push_back(pace.factor());
  }
  return quantile(std::move(others), 0.5);
}

}  // namespace

std::vector<RankPace> paces(const RunReport& report) {
  std::map<Rank, RankPace> by_rank;
  for (const StageRow& row : report.stage_rows) {
    if (!row.forward.measured || !row.forward.predicted || !row.backward.measured ||
        !row.backward.predicted) {
      continue;
    }
    RankPace& pace = by_rank[row.rank];
    pace.rank = row.rank;
    pace.measured += *row.forward.measured + *row.backward.measured;
    pace.predicted += *row.forward.predicted + *row.backward.predicted;
  }
  std::vector<RankPace> found;
  for (const auto& [rank, pace] : by_rank) {
    if (pace.predicted > Seconds{}) found.push_back(pace);
  }
  return found;
}

SlowRanks::SlowRanks(RunPaths paths, Plan plan, std::vector<std::string> names,
                     std::optional<PlanSources> sources, std::optional<double> replan_when)
    : paths_(std::move(paths)),
      plan_(std::move(plan)),
      names_(std::move(names)),
      sources_(std::move(sources)),
      replan_when_(replan_when) {}

SlowNews SlowRanks::look(const std::function<bool()>& waits) noexcept try {
  RunFiles run;
  std::int64_t newest = -1;
  while (true) {
    run = {};
    run.plan = plan_;
    run.ended = false;
    take_live_records(run, paths_);
    for (const Event& event : run.timeline.events) newest = std::max(newest, event.step);
    if (newest > newest_) break;
    if (!waits || !waits()) return {};
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  newest_ = newest;
  const RunReport report = make_report(run);
  const std::vector<RankPace> all = paces(report);
  if (all.size() < 2) return {};
  SlowNews news;
  for (const RankPace& pace : all) {
    const double others = pace_beside(all, pace.rank);
    int& looks = slow_[pace.rank];
    if (looks > kLooks) continue;  // told
    looks = is_off(pace, others) ? looks + 1 : 0;
    if (looks < kLooks) continue;
    ++looks;
    news.text += (news.text.empty() ? "" : "\n") + told(report, pace, others);
  }
  if (news.text.empty()) return news;
  std::optional<BetterPlan> other = other_plan(report);
  news.text += advice(other);
  if (replan_when_ && other && is_worth(*other)) news.better = std::move(other);
  return news;
} catch (const std::exception&) {
  return {};  // what cannot be read or priced says nothing of a rank
}

bool SlowRanks::is_off(const RankPace& pace, double others) const {
  // People are told of ranks that are slower than planned. A run that plans again compares ranks with each other alone:
  // its plan may count on a slow one, and beside that, once it has recovered, all others are slow.
  if (!replan_when_) return pace.factor() > kSlow * std::max(1.0, others);
  return pace.factor() > *replan_when_ * others;
}

std::string SlowRanks::told(const RunReport& report, const RankPace& slow, double others) const {
  std::string text =
      fmt::format("{} computes {:.2f} times as long as planned ({} per step; the others {:.2f} times){}",
                  names_.at(slow.rank.index()), slow.factor(), format_duration(slow.measured), others,
                  slow.factor() > 1 ? ", and all wait for it" : "");
  const std::size_t at = slow.rank.index();
  if (at < report.core_shares.size() && is_part_of_a_core(report.core_shares[at])) {
    text += fmt::format("; its thread gets {} of a core", format_percent(report.core_shares[at]));
  }
  return text;
}

std::optional<BetterPlan> SlowRanks::other_plan(const RunReport& report) const {
  if (!sources_) return std::nullopt;
  // One look cannot tell a slow device from slow layers. If it is the layers, a plan for slow devices moves too many; if it
  // is the device, one for slow layers moves too few, and the next look moves more.
  const Attribution blamed = replan_when_ ? Attribution::layers : Attribution::devices;
  try {
    const SearchBudget search{.time_limit = Seconds{0.5}};
    for (Replanned& answer : replan(plan_, measured_stages(report), sources_->profile, sources_->cluster,
                                    search, ReplannedRanks::as_now)) {
      if (answer.blame != blamed || !answer.present.predicted) continue;
      const Seconds gain = answer.gain();
      return BetterPlan{std::move(answer.result.best.plan), gain};
    }
  } catch (const std::exception&) {
    // A plan with replicas, or one that nothing fits beside.
  }
  return std::nullopt;
}

std::string SlowRanks::advice(const std::optional<BetterPlan>& other) const {
  std::string look = fmt::format(". `stagecraft report {}` shows where time goes", paths_.root);
  if (!other) return look;
  if (!is_worth(*other)) return look + "; no other cut would help";
  const std::string shorter = format_percent(other->gain / (other->plan.predicted->step + other->gain));
  if (replan_when_)
    return look +
           fmt::format("; another cut makes steps {} shorter: it is taken at the next checkpoint", shorter);
  return look +
         fmt::format(
             "; another cut would make steps {} shorter (`stagecraft replan` writes it; stop, and go on "
             "with `train --resume --plan`)",
             shorter);
}

SlowRanks slow_ranks_of(const RunSetup& setup, const RunPaths& paths) {
  std::vector<std::string> names;
  for (Rank rank{0}; rank.value < setup.world(); ++rank.value) names.push_back(setup.rank_name(rank));
  std::optional<PlanSources> sources;
  try {
    if (setup.synchronous() && is_there(paths.profile())) {
      sources.emplace(read_profile(paths.profile()), Cluster{});
      const World world{setup.world(), setup.world()};
      sources->cluster =
          plan_cluster(setup.config(), paths.config(), setup.inputs().model, sources->profile, world);
    }
  } catch (const std::exception&) {
    sources.reset();
  }
  return SlowRanks(paths, setup.plan(), std::move(names), std::move(sources), setup.config().replan.when);
}

}  // namespace stagecraft
