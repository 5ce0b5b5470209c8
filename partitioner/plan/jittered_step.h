#pragma once

// How a plan's step takes to times that vary as the profile saw them vary.

#include "partitioner/plan/plan.h"
#include "schedules/simulator/simulator.h"

namespace stagecraft {

/// Of one step, over so many simulations; an asynchronous segment's mean step.
struct JitteredStep {
  Seconds p50, p95;
};

/// Samples with the same seed see the same luck action by action, so plans compare fairly. Requires costs.
/// Throws InputError where neither the costs have a spread nor `jitter` says one.
[[nodiscard]] JitteredStep jittered_step(const Plan& plan, const Jitter& jitter);

enum class ChooseBy : std::uint8_t { step, p95 };

template <>
inline constexpr std::array enum_names<ChooseBy>{"step", "p95"};

}  // namespace stagecraft
