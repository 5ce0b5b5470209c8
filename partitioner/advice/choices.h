#pragma once

// Choosing among schedules, micro-batch sizes and recomputation: each combination is planned by itself, and
// what is left is the question of time against memory.
//
// For that question each combination is planned again under falling caps (docs/guides/planning.md). Let a
// plan need m bytes, and let c be the last cap that allowed it. The plan found for c is no slower. It needs
// more than m by at most one step of the caps, because otherwise the next cap would have allowed it too. So
// for every possible plan one was found that is within that step of it.

#include "partitioner/search/planner.h"

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

/// The caps of a combination fall by this share at least, and by twice as much after so many.
inline constexpr double kCapStep = 0.01;
inline constexpr int kCapsAStep = 16;
/// Steps that differ by less than this share are one on the front.
inline constexpr double kSameStep = 1e-4;

struct ChoiceRequest {
  std::vector<std::string> schedules;
  std::vector<Batching> batchings;
  bool falling_caps = false;  ///< whether plans that are slower and need less are looked for
  /// All else. An option that a schedule does not take (warmup_extra, vertical_sync) is left out for it.
  PlanRequest base;
  std::function<void(const std::string& schedule, int tried, int all)> progress{};  ///< may be empty
};

struct Choices {
  std::vector<PlanCandidate> all;    ///< by step, then memory; never empty
  std::vector<std::string> refused;  ///< "zb_v, micro-batches of 4: why": where nothing could be planned
  double cap_step = 0;               ///< the largest share by which caps fell; 0: they did not

  /// Those of `all` that no other beats in both step and memory: the fastest first, the smallest last. Of
  /// steps within kSameStep of each other the one that needs least memory.
  [[nodiscard]] std::vector<const PlanCandidate*> front() const;
};

/// Throws RefusedError when nothing fits at all, InputError when no schedule can take the request.
[[nodiscard]] Choices choose(const Profile& profile, const Cluster& cluster, const ChoiceRequest& request);

/// Each schedule with each batching, in that order, as it is planned by itself.
[[nodiscard]] std::vector<PlanRequest> requests_of(const ChoiceRequest& request);

/// The schedules of a list such as "1f1b,zb_h1"; "all" stands for every one that trains as one device would
/// (the synchronous ones): those with older weights train differently, and have to be named.
[[nodiscard]] std::vector<std::string> schedule_names(const std::string& list, const InputPlace& place = {});

/// `samples` a step in micro-batches of every size the profile has and the step fills.
[[nodiscard]] std::vector<Batching> batchings_of(const Profile& profile, std::int64_t samples);

}  // namespace stagecraft
