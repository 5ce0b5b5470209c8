#pragma once

// What would another cluster or another split of the batch bring? Each question is planned again.

#include "partitioner/search/planner.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace stagecraft {

/// One change, and the best plan with it.
struct WhatIf {
  enum class Kind : std::uint8_t {
    /// One child more of a level. Clusters are rectangular, so of several levels the outermost gets one more
    /// (a machine of all its devices), and as another question the innermost (a device in every machine).
    /// New devices have speed 1.
    more_devices,
    fewer_devices,  ///< one child less of the outermost level with several: the slowest, of equals the last
    more_memory,    ///< twice as much a device; asked where memory binds
    no_recompute,   ///< twice as much, and nothing is recomputed
    chosen_recompute,     ///< each stage recomputes what it needs to fit; asked where memory binds
    faster_links,         ///< of one level: half the latency, twice the bandwidth
    more_micro_batches,   ///< twice as many of half the size
    fewer_micro_batches,  ///< half as many of twice the size
  };
  Kind kind = Kind::more_devices;
  std::optional<int> level;  ///< where the change is there
  std::vector<int> counts;
  std::optional<Bytes> memory;
  int micro_batches = 1;
  std::int64_t micro_batch_size = 1;
  std::optional<Seconds> as_it_is;  ///< leaves new devices alone
  std::optional<Seconds> step;
  double change = 0;
  std::string plan;  ///< "4 stages, 2-1-1-1, cuts 2,4,6"
  std::string refused;
};

template <>
inline constexpr std::array enum_names<WhatIf::Kind>{
    "more_devices",     "fewer_devices", "more_memory",        "no_recompute",
    "chosen_recompute", "faster_links",  "more_micro_batches", "fewer_micro_batches"};

void describe(auto& v, WhatIf& w) {
  v.required("change", w.kind, "what is other than now");
  v.optional("level", w.level, "of the cluster's levels, innermost 0");
  v.required("counts", w.counts, "of the levels then, innermost first");
  v.optional("memory_bytes", w.memory, "a device then");
  v.required("micro_batches", w.micro_batches, "then");
  v.required("micro_batch_size", w.micro_batch_size, "then");
  v.optional("as_it_is_ms", w.as_it_is, "the present plan's step then; absent: it cannot be run");
  v.optional("step_ms", w.step, "the best plan's; absent: there is none");
  v.required("step_change", w.change, "of the step, as a share of the present one");
  v.required("plan", w.plan, "in words; empty: the present one");
  v.optional("refused", w.refused, "why there is no plan");
}

/// Called before each question; may be empty.
using WhatIfProgress = std::function<void(const std::string& what, int tried, int all)>;

/// All that apply. Steps are never above those of the present plan as it is. Each gets an equal part of the
/// request's budget. `memory_binds` says whether more memory is asked for.
[[nodiscard]] std::vector<WhatIf> what_if(const Profile& profile, const Cluster& cluster,
                                          const PlanRequest& request, const Plan& present, bool memory_binds,
                                          const WhatIfProgress& progress = {});

}  // namespace stagecraft
