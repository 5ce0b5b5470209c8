#include "partitioner/choices.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <sstream>

namespace stagecraft {
namespace {

PlanRequest request_for(PlanRequest request, const Schedule& schedule, const Batching& batching) {
  request.schedule.name = schedule.name;
  request.micro_batch_size = batching.micro_batch_size;
  request.micro_batches = batching.micro_batches;
  if (!schedule.takes_vertical_sync) request.schedule.vertical_sync = false;
  if (!schedule.takes_warmup_extra) request.schedule.warmup_extra = 0;
  if (!schedule.clips) request.schedule.agree_norm = false;
  return request;
}

void take(PlanCandidate candidate, std::vector<Choice>& all) {
  const std::vector<Bytes>& memory = candidate.plan.predicted->memory;
  const Bytes most = *std::max_element(memory.begin(), memory.end());
  all.push_back({std::move(candidate), most});
}

}  // namespace

std::vector<const Choice*> Choices::front() const {
  std::vector<const Choice*> front;
  for (const Choice& choice : all) {  // by step: what comes later has to need less memory
    if (front.empty() || choice.memory < front.back()->memory) front.push_back(&choice);
  }
  return front;
}

Choices choose(const Profile& profile, const Cluster& cluster, const ChoiceRequest& request) {
  STAGECRAFT_CHECK(!request.schedules.empty() && !request.batchings.empty(), "there is something to choose");
  Choices choices;
  bool fits_not = false;
  const int count = static_cast<int>(request.schedules.size() * request.batchings.size());
  int tried = 0;
  for (const std::string& name : request.schedules) {
    for (const Batching& batching : request.batchings) {
      if (request.progress) request.progress(name, tried, count);
      ++tried;
      const auto refused = [&](const std::string& why) {
        choices.refused.push_back(fmt::format("{}, {} micro-batches of {}: {}", name, batching.micro_batches,
                                              batching.micro_batch_size, why));
      };
      try {
        PlanResult result =
            make_plan(profile, cluster, request_for(request.base, find_schedule(name), batching));
        take(std::move(result.best), choices.all);
        for (PlanCandidate& other : result.others) take(std::move(other), choices.all);
      } catch (const InputError& error) {
        refused(error.what());
      } catch (const RefusedError& error) {
        fits_not = true;
        refused(error.what());
      }
    }
  }
  if (choices.all.empty()) {
    const std::string text = fmt::format("nothing to choose from:\n  {}", fmt::join(choices.refused, "\n  "));
    if (fits_not) throw RefusedError(text);
    throw InputError(text);
  }
  std::stable_sort(choices.all.begin(), choices.all.end(), [](const Choice& a, const Choice& b) {
    return a.step() != b.step() ? a.step() < b.step() : a.memory < b.memory;
  });
  return choices;
}

std::vector<std::string> schedule_names(const std::string& list, const InputPlace& place) {
  std::vector<std::string> names;
  const auto add = [&](const std::string& name) {
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
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
    throw InputError(fmt::format(
        "{} samples a step cannot be had in 1 to {} micro-batches of {} samples, which is what was measured",
        samples, kMostMicroBatches, fmt::join(sizes, " or ")));
  }
  return all;
}

}  // namespace stagecraft
