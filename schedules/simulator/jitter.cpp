#include "schedules/simulator/jitter.h"

#include <cmath>
#include <numbers>

namespace stagecraft::simulator {
namespace {

constexpr double kUpperQuartile = 0.67448975019608171;  // of the standard normal distribution
constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15ULL;

/// SplitMix64's output function (Steele, Lea & Flood, OOPSLA'14): a hash of a counter.
std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31U);
}

/// In (0, 1].
double uniform(std::uint64_t bits) { return (static_cast<double>(bits >> 11U) + 1) * 0x1p-53; }

}  // namespace

double log_normal_sigma(double range) { return std::asinh(range / 2) / kUpperQuartile; }

double normal_of(std::uint64_t key, std::int32_t rank, std::int32_t place) {
  const std::uint64_t name = (static_cast<std::uint64_t>(static_cast<std::uint32_t>(rank)) << 32U) |
                             static_cast<std::uint32_t>(place);
  const std::uint64_t counter = mix(key + mix(name + kGolden));
  const double radius = std::sqrt(-2 * std::log(uniform(mix(counter + kGolden))));
  return radius * std::cos(2 * std::numbers::pi * uniform(mix(counter + 2 * kGolden)));
}

Sigmas sigmas(const Instructions& code, const CostTable& costs, double stage_spread, double link_spread) {
  Sigmas all{std::vector<double>(code.stage_replicas.size() * part_count), log_normal_sigma(link_spread)};
  for (std::size_t i = 0; i < code.stage_replicas.size(); ++i) {
    const StageCosts& stage = costs.stages[code.stage_replicas[i].stage.index()];
    double* parts = &all.compute[i * part_count];
    if (!stage.spread) {
      std::fill(parts, parts + part_count, log_normal_sigma(stage_spread));
      continue;
    }
    const StageSpread& spread = *stage.spread;
    // The halves of a backward vary independently.
    const Seconds backward{std::hypot(spread.backward_input.value, spread.backward_weight.value)};
    const auto ranges = by_part(spread, backward);
    const auto medians = by_part(stage, stage.backward_input + stage.backward_weight);
    for (std::size_t p = 0; p < part_count; ++p) {
      parts[p] = medians[p] > Seconds{} ? log_normal_sigma(ranges[p] / medians[p]) : 0;
    }
  }
  return all;
}

void JitterHooks::sample(std::uint64_t number) { key_ = mix(mix(seed_ + kGolden) + number * kGolden); }

double JitterHooks::vary(const Instruction& i, double price, double sigma, std::uint64_t key) {
  return price * std::exp(sigma * normal_of(key, i.rank, i.place));
}

}  // namespace stagecraft::simulator
