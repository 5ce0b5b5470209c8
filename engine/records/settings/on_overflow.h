#pragma once

#include "base/describe.h"

#include <array>
#include <cstdint>
#include <utility>

namespace stagecraft {

/// What a run does about a step whose gradient is not finite (engine/core/overflow.h).
/// stop: the run ends before such a step. skip: the step is left out and counted.
enum class OnOverflow : std::uint8_t { stop, skip };
template <>
inline constexpr std::array enum_names<OnOverflow>{"stop", "skip"};

}  // namespace stagecraft
