#include "partitioner/advice/choices.h"

#include "schedules/generators/registry.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <sstream>

namespace stagecraft {
namespace {

/// All that is looked at beside what was asked for shares the budget of one plan, if each combination takes
/// so many caps.
constexpr std::int64_t kUsualCaps = 8;

PlanRequest request_for(PlanRequest request, const Schedule& schedule, const Batching& batching) {
  request.schedule.name = schedule.name;
  request.micro_batch_size = batching.micro_batch_size;
  request.micro_batches = batching.micro_batches;
  if (!schedule.takes_vertical_sync) request.schedule.vertical_sync = false;
  if (!schedule.takes_warmup_extra) request.schedule.warmup_extra = 0;
  if (!schedule.clips) request.schedule.agree_norm = false;
  return request;
}

class Chooser {
 public:
  Chooser(const Profile& profile, const Cluster& cluster, const ChoiceRequest& request)
      : profile_(profile), cluster_(cluster), request_(request), combinations_(requests_of(request)) {}

  Choices run() {
    std::vector<std::pair<const PlanRequest*, PlannedCap>> fitting;
    bool fits_not = false;
    std::size_t done = 0;
    for (const PlanRequest& combination : combinations_) {
      tell(combination, done++);
      const auto refused = [&](const std::string& why) {
        choices_.refused.push_back(fmt::format("{}, {} micro-batches of {}: {}", combination.schedule.name,
                                               combination.micro_batches, combination.micro_batch_size, why));
      };
      try {
        fitting.emplace_back(&combination, plan(combination, cluster_));
      } catch (const InputError& error) {
        refused(error.what());
      } catch (const NoPlanFits& error) {
        fits_not = true;
        const std::string& why = error.last_reason();
        const bool says_so = why.starts_with("nothing that fits was found");
        refused(says_so ? why : (error.proved() ? "nothing fits; " : "nothing that fits was found; ") + why);
      }
    }
    for (const auto& [combination, found] : fitting) {
      if (!request_.falling_caps) break;
      tell(*combination, done++);
      if (find_schedule(combination->schedule.name).searched) continue;
      fall(*combination, found);
    }
    if (choices_.all.empty()) {
      const std::string text =
          fmt::format("nothing to choose from:\n  {}", fmt::join(choices_.refused, "\n  "));
      if (fits_not) throw RefusedError(text);
      throw InputError(text);
    }
    std::ranges::stable_sort(choices_.all, {}, [](const PlanCandidate& choice) {
      return std::pair(choice.step(), choice.memory());
    });
    return std::move(choices_);
  }

 private:
  /// The best plan of a request: what it needs, and what no plan of it is faster than.
  struct PlannedCap {
    Bytes memory;
    Seconds bound;
  };

  void tell(const PlanRequest& combination, std::size_t done) const {
    const std::size_t rounds = request_.falling_caps ? 2 : 1;
    if (!request_.progress) return;
    request_.progress(combination.schedule.name, static_cast<int>(done),
                      static_cast<int>(rounds * combinations_.size()));
  }
  PlannedCap plan(const PlanRequest& request, const Cluster& cluster) {
    PlanResult result = make_plan(profile_, cluster, request);
    take(std::move(result.best));
    const PlannedCap found{choices_.all.back().memory(), result.proof ? result.proof->bound : Seconds{}};
    for (PlanCandidate& other : result.others) take(std::move(other));
    return found;
  }

  void take(PlanCandidate candidate) {
    candidate.plan.capacity = cluster_.usable_memory();  // not a cap that was tried
    choices_.all.push_back(std::move(candidate));
  }

  void fall(PlanRequest request, PlannedCap last) {
    request.search.share_among(static_cast<std::int64_t>(combinations_.size()) * kUsualCaps);
    Cluster cluster = cluster_;
    double step = kCapStep;
    for (int caps = 1;; ++caps) {
      const Bytes cap = next_cap(last, step);
      if (cap <= Bytes{}) return;
      choices_.cap_step = std::max(choices_.cap_step, step);
      cluster.memory = cap + cluster.memory_reserve;
      try {
        last = plan(request, cluster);
      } catch (const RefusedError&) {
        return;
      }
      if (caps % kCapsAStep == 0) step = std::min(2 * step, 0.5);
    }
  }

  /// Below what the last plan needs, and below what any plan needs that this combination cannot beat.
  [[nodiscard]] Bytes next_cap(const PlannedCap& last, double step) const {
    const auto fallen = static_cast<std::int64_t>(static_cast<double>(last.memory.value) * (1 - step));
    Bytes cap{std::min(last.memory.value - 1, fallen)};
    for (const PlanCandidate& choice : choices_.all) {
      if (choice.step() <= last.bound) cap = std::min(cap, choice.memory() - Bytes{1});
    }
    return cap;
  }

  const Profile& profile_;
  const Cluster& cluster_;
  const ChoiceRequest& request_;
  std::vector<PlanRequest> combinations_;  ///< each is planned by itself
  Choices choices_;
};

}  // namespace

std::vector<const PlanCandidate*> Choices::front() const {
  std::vector<const PlanCandidate*> front;
  Seconds fastest;                           // of those that count as one with the last
  for (const PlanCandidate& choice : all) {  // by step: what comes later has to need less memory
    if (!front.empty() && choice.memory() >= front.back()->memory()) continue;
    if (!front.empty() && choice.step() <= fastest * (1 + kSameStep)) {
      front.back() = &choice;
    } else {
      front.push_back(&choice);
      fastest = choice.step();
    }
  }
  return front;
}

std::vector<PlanRequest> requests_of(const ChoiceRequest& request) {
  std::vector<PlanRequest> all;
  for (const std::string& name : request.schedules) {
    for (const Batching& batching : request.batchings) {
      all.push_back(request_for(request.base, find_schedule(name), batching));
    }
  }
  return all;
}

Choices choose(const Profile& profile, const Cluster& cluster, const ChoiceRequest& request) {
  STAGECRAFT_CHECK(!request.schedules.empty() && !request.batchings.empty(), "there is something to choose");
  return Chooser(profile, cluster, request).run();
}

std::vector<std::string> schedule_names(const std::string& list, const InputPlace& place) {
  std::vector<std::string> names;
  const auto add = [&](const std::string& name) {
    if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  };
  std::istringstream parts(list);
  for (std::string part; std::getline(parts, part, ',');) {
    if (part == "all") {
      for (const Schedule& schedule : schedules()) {
        if (schedule.synchronous) add(schedule.name);
      }
    } else {
      add(find_schedule(part, place).name);
    }
  }
  if (names.empty()) static_cast<void>(find_schedule(list, place));  // says that there is none of that name
  return names;
}

std::vector<Batching> batchings_of(const Profile& profile, std::int64_t samples) {
  std::vector<Batching> all;
  std::vector<std::int64_t> sizes;
  for (const Measurement& measurement : profile.measurements) {
    const std::int64_t size = measurement.micro_batch;
    sizes.push_back(size);
    const std::int64_t count = (samples + size - 1) / size;
    if (size <= samples && count <= kMostMicroBatches) all.push_back({size, static_cast<int>(count)});
  }
  if (all.empty()) {
    throw InputError(
        fmt::format("{} samples per step cannot be had in 1 to {} micro-batches of {} samples, which is what "
                    "was measured",
                    samples, kMostMicroBatches, fmt::join(sizes, " or ")));
  }
  return all;
}

}  // namespace stagecraft
