#pragma once

// Choosing among schedules and micro-batch sizes: each pair is planned by itself, and what is left is the
// question of time against memory.

#include "partitioner/planner.h"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace stagecraft {

/// A step's samples in micro-batches of one size; the last may be short, and is priced as a full one.
struct Batching {
  std::int64_t micro_batch_size = 1;
  int micro_batches = 1;
};

struct ChoiceRequest {
  std::vector<std::string> schedules;
  std::vector<Batching> batchings;
  /// All else. An option that a schedule does not take (warmup_extra, vertical_sync) is left out for it.
  PlanRequest base;
  std::function<void(const std::string& schedule, int tried, int all)> progress{};  ///< may be empty
};

struct Choice {
  PlanCandidate candidate;
  Bytes memory;  ///< of the rank that needs most

  [[nodiscard]] Seconds step() const { return candidate.plan.predicted->step; }
};

struct Choices {
  std::vector<Choice> all;           ///< by step, then memory; never empty
  std::vector<std::string> refused;  ///< "zb_v, micro-batches of 4: why": where nothing could be planned

  /// Those of `all` that no other beats in both step and memory: the fastest first, the smallest last.
  [[nodiscard]] std::vector<const Choice*> front() const;
};

/// Throws RefusedError when nothing fits at all, InputError when no schedule can take the request.
[[nodiscard]] Choices choose(const Profile& profile, const Cluster& cluster, const ChoiceRequest& request);

/// The schedules of a list such as "1f1b,zb_h1"; "all" stands for every one that trains as one device would
/// (the synchronous ones): those with older weights train differently, and have to be named.
[[nodiscard]] std::vector<std::string> schedule_names(const std::string& list, const InputPlace& place = {});

/// `samples` a step in micro-batches of every size the profile has and the step fills.
[[nodiscard]] std::vector<Batching> batchings_of(const Profile& profile, std::int64_t samples);

}  // namespace stagecraft
