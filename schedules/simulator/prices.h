#pragma once

// What every instruction of a program takes, from a cost table: all look-ups in costs and network are done
// here, once per run.

#include "schedules/costs/costs.h"
#include "schedules/simulator/instructions.h"
#include "schedules/simulator/simulator.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace stagecraft::simulator {

enum class Links : std::uint8_t { priced, free };

/// Of a stage's forward, both parts of its backward and its step, what each Part takes: a recompute a forward,
/// a whole backward `backward`.
[[nodiscard]] constexpr std::array<Seconds, part_count> by_part(const auto& stage, Seconds backward) {
  return {stage.forward,        stage.forward,         stage.forward, backward,
          stage.backward_input, stage.backward_weight, stage.step};
}

struct Prices {
  /// Links that several pairs of ranks share: the one a route leaves by and the one it comes in by.
  struct SharedLinks {
    std::int32_t out = -1, in = -1;  ///< -1: the route has its link for itself
  };

  std::vector<double> compute;            ///< seconds, per stage_replica and part
  std::vector<double> route;              ///< seconds
  std::vector<double> collective;         ///< seconds
  std::vector<SharedLinks> shared_links;  ///< per route; empty when nothing is shared
  std::size_t shared_link_count = 0;

  /// Prices `code`, which belongs to a program of `stages` stages and `ranks` ranks, or to a part of one. A
  /// second call for the same code and network allocates nothing.
  void set(const Instructions& code, const CostTable& costs, Links links, std::size_t stages,
           std::size_t ranks, const PartOf* part = nullptr);

 private:
  void set_shared_links(const Instructions& code, const Network& network, std::size_t ranks,
                        const PartOf* part);
};

}  // namespace stagecraft::simulator
