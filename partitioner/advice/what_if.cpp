#include "partitioner/advice/what_if.h"

#include "base/statistics.h"
#include "partitioner/plan/plan_pricer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

namespace stagecraft {
namespace {

/// Cuts of a plan in words.
constexpr std::size_t kMostShown = 15;

/// A change with all that is planned for it.
struct Question {
  WhatIf answer;
  Cluster cluster;
  PlanRequest request;
  bool same_plan_runs = false;
};

class Questions {
 public:
  Questions(const Profile& profile, const Cluster& cluster, const PlanRequest& request)
      : profile_(profile), cluster_(cluster), request_(request) {}

  std::vector<Question> all(const Plan& present, bool memory_binds) {
    devices();
    if (memory_binds) memory(present);
    for (std::size_t level = 0; level < cluster_.levels.size(); ++level) links(level);
    micro_batches();
    return std::move(questions_);
  }

 private:
  void ask(WhatIf::Kind kind, std::optional<std::size_t> level, Cluster cluster, PlanRequest request,
           bool same_plan_runs) {
    questions_.push_back({{}, std::move(cluster), std::move(request), same_plan_runs});
    questions_.back().answer.kind = kind;
    if (level) questions_.back().answer.level = static_cast<int>(*level);
  }

  /// Children of the level, and devices in each.
  [[nodiscard]] std::pair<int, int> size_of(std::size_t level) const {
    int inside = 1;
    for (std::size_t l = 0; l < level; ++l) inside *= cluster_.levels[l].count;
    return {cluster_.levels[level].count, inside};
  }

  void devices() {
    // What has one child only is no level to people.
    std::vector<std::size_t> several;
    for (std::size_t l = 0; l < cluster_.levels.size(); ++l) {
      if (cluster_.levels[l].count > 1) several.push_back(l);
    }
    const std::size_t outermost = several.empty() ? 0 : several.back();
    const std::size_t innermost = several.empty() ? 0 : several.front();
    ask(WhatIf::Kind::more_devices, outermost, with_one_more(outermost), request_, true);
    if (innermost != outermost) {
      ask(WhatIf::Kind::more_devices, innermost, with_one_more(innermost), request_, true);
    }
    if (!several.empty()) {
      ask(WhatIf::Kind::fewer_devices, outermost, with_one_less(outermost), request_, false);
    }
  }

  [[nodiscard]] Cluster with_one_more(std::size_t level) const {
    Cluster cluster = cluster_;
    const auto [count, inside] = size_of(level);
    ++cluster.levels[level].count;
    if (cluster_.speed.empty()) return cluster;
    // Behind the children of every node of the level comes a new one; the last first, so that places stay.
    for (int end = cluster_.devices(); end > 0; end -= count * inside) {
      cluster.speed.insert(cluster.speed.begin() + end, to_size(inside), 1.0);
    }
    return cluster;
  }

  /// Of the outermost level with several children, so that there is one node of it.
  [[nodiscard]] Cluster with_one_less(std::size_t level) const {
    Cluster cluster = cluster_;
    const auto [count, inside] = size_of(level);
    --cluster.levels[level].count;
    if (cluster_.speed.empty()) return cluster;
    const auto speed_of = [&, inside = inside](int child) {
      const auto first = cluster_.speed.begin() + static_cast<std::ptrdiff_t>(child) * inside;
      return std::accumulate(first, first + inside, 0.0);
    };
    int slowest = 0;
    for (int child = 1; child < count; ++child) {
      if (speed_of(child) <= speed_of(slowest)) slowest = child;
    }
    const auto first = cluster.speed.begin() + static_cast<std::ptrdiff_t>(slowest) * inside;
    cluster.speed.erase(first, first + inside);
    return cluster;
  }

  void memory(const Plan& present) {
    if (request_.recompute) {
      PlanRequest chosen = request_;
      chosen.recompute = std::nullopt;
      ask(WhatIf::Kind::chosen_recompute, {}, cluster_, chosen, true);
    }
    Cluster larger = cluster_;
    larger.memory = *cluster_.memory * 2;
    ask(WhatIf::Kind::more_memory, {}, larger, request_, true);
    if (!any_recompute(present.recompute())) return;
    PlanRequest kept = request_;
    kept.recompute = Recompute::none;
    ask(WhatIf::Kind::no_recompute, {}, larger, kept, true);
  }

  void links(std::size_t level) {
    if (cluster_.levels[level].count < 2) return;
    Cluster faster = cluster_;
    Link& link = faster.levels[level].link;
    link.latency = link.latency / 2;
    link.bytes_per_second *= 2;
    ask(WhatIf::Kind::faster_links, level, std::move(faster), request_, true);
  }

  void micro_batches() {
    const auto measured = [&](std::int64_t size) {
      return std::ranges::find(profile_.measurements, size, &Measurement::micro_batch) !=
             profile_.measurements.end();
    };
    const auto split = [&](WhatIf::Kind kind, std::int64_t size, int count) {
      if (!measured(size)) return;
      PlanRequest other = request_;
      other.micro_batch_size = size;
      other.micro_batches = count;
      ask(kind, {}, cluster_, other, false);
    };
    const std::int64_t size = request_.micro_batch_size;
    const int count = request_.micro_batches;
    if (size % 2 == 0 && count <= kMostMicroBatches / 2) {
      split(WhatIf::Kind::more_micro_batches, size / 2, count * 2);
    }
    if (count % 2 == 0) split(WhatIf::Kind::fewer_micro_batches, size * 2, count / 2);
  }

  const Profile& profile_;
  const Cluster& cluster_;
  const PlanRequest& request_;
  std::vector<Question> questions_;
};

/// The present plan on the question's cluster; it leaves devices alone that are not there now.
Seconds same_plan(PlanPricer& pricer, const Plan& present, const Question& question) {
  if (question.answer.kind != WhatIf::Kind::faster_links) return present.predicted->step;
  CostTable costs = *present.costs;
  costs.network = question.cluster.network();
  return pricer.step(costs);
}

/// With the cuts, where they are few enough to read.
std::string words(const PlanCandidate& candidate, const Plan& present) {
  const Plan& plan = candidate.plan;
  const std::vector<int> cuts = plan.cuts();
  if (plan.stages == present.stages) return "";
  return fmt::format(
      "{} stage{}, {}{}{}", plan.stages.size(), plan.stages.size() == 1 ? "" : "s", candidate.placement,
      cuts.empty() || cuts.size() > kMostShown ? "" : fmt::format(", cuts {}", fmt::join(cuts, ",")),
      recompute_words(plan.recompute()));
}

}  // namespace

std::vector<WhatIf> what_if(const Profile& profile, const Cluster& cluster, const PlanRequest& request,
                            const Plan& present, bool memory_binds, const WhatIfProgress& progress) {
  std::vector<Question> questions =
      Questions(profile, cluster, request).all(present, memory_binds && cluster.memory);
  PlanPricer pricer(present);
  const Seconds now = present.predicted->step;
  std::vector<WhatIf> answers;
  for (Question& question : questions) {
    WhatIf& answer = question.answer;
    if (progress) {
      progress(enum_name(answer.kind), static_cast<int>(answers.size()), static_cast<int>(questions.size()));
    }
    for (const NetworkLevel& level : question.cluster.levels) answer.counts.push_back(level.count);
    answer.memory = question.cluster.memory;
    answer.micro_batches = question.request.micro_batches;
    answer.micro_batch_size = question.request.micro_batch_size;
    if (question.same_plan_runs) answer.as_it_is = same_plan(pricer, present, question);
    question.request.search.share_among(static_cast<std::int64_t>(questions.size()));
    try {
      const PlanResult result = make_plan(profile, question.cluster, question.request);
      answer.step = result.best.step();
      answer.plan = words(result.best, present);
    } catch (const InputError& error) {
      answer.refused = error.what();
    } catch (const RefusedError& error) {
      answer.refused = error.what();
    }
    if (answer.as_it_is && (!answer.step || *answer.as_it_is < *answer.step)) {
      answer.step = answer.as_it_is;
      answer.plan.clear();
      answer.refused.clear();
    }
    if (answer.step) answer.change = relative_change(now.value, answer.step->value);
    answers.push_back(std::move(answer));
  }
  return answers;
}

}  // namespace stagecraft
