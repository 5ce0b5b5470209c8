#pragma once

#include "models/layers/site.h"

#include <vector>

namespace stagecraft {

enum class DelayWait : std::uint8_t { sleep, spin };
template <>
inline constexpr std::array enum_names<DelayWait>{"sleep", "spin"};

/// A layer that takes the time it is told to: for measuring schedules, links and stragglers, also on machines
/// with fewer processors than ranks (docs/guides/measuring.md). Each call takes at least the settings' time, its own
/// arithmetic included. The output is the input's numbers, cut or repeated to `features`, times a vector of
/// parameters (repeated as well) that starts as ones. Keeps, with parameters, x and, I->W, dy; with factors a
/// number. A dry pass on `meta` does not wait. The times are no part of the fingerprint: like a machine's
/// speed, they do not change what is computed.
struct DelaySpec {
  static constexpr const char* kName = "delay";
  Seconds forward, backward_input, backward_weight;
  DelayWait wait = DelayWait::sleep;
  std::int64_t features = 0;  ///< 0: as many as come in, in their shape
  std::int64_t parameters = 0;
  std::vector<double> factors;
};
void describe(Fields& v, DelaySpec& s);
[[nodiscard]] LayerPtr make_layer(const DelaySpec& spec, const LayerSite& site);

}  // namespace stagecraft
