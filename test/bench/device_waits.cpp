// Where a host may wait for its whole device under NCCL's rules, and what it costs that it may: the tables of
// docs/design/gpu.md.
//   bench_device_waits

#include "base/error.h"
#include "schedules/checker/checker.h"
#include "schedules/generators/registry.h"
#include "schedules/lowering/lowering.h"
#include "schedules/simulator/simulator.h"

#include <fmt/format.h>

#include <optional>
#include <vector>

namespace {

using namespace stagecraft;
using Channels = TransportRules::Channels;

/// Launch and message of a host each, for either end.
constexpr Seconds kBells{20e-6};

struct Made {
  LoweredProgram program;
  TransportRules rules;
};

std::optional<Made> made(const Schedule& schedule, const Placement& placement) {
  const int ranks = placement.world();
  for (const Channels channels : {Channels::payload, Channels::boundary}) {
    const TransportRules rules = TransportRules::nccl(channels);
    for (const std::vector<int>& groups : {std::vector<int>{4 * ranks}, std::vector<int>(3, 2 * ranks)}) {
      const ScheduleRequest request{.placement = placement, .group_sizes = groups};
      if (schedule.synchronous == (groups.size() > 1)) continue;
      try {
        Made it{lower(schedule.generate(request), {.rules = rules}), rules};
        if (check(it.program, nullptr, std::nullopt, rules).accepted()) return it;
      } catch (const InputError&) {
        return std::nullopt;
      }
    }
  }
  return std::nullopt;
}

DeviceWaits waits(const Made& it, bool announced) {
  TransportRules rules = it.rules;
  rules.announced = announced;
  return check(it.program, nullptr, std::nullopt, rules).device_waits.value();
}

double makespan(const LoweredProgram& program, double transfer, Seconds latency) {
  CostTable costs = unit_costs(program.placement.stages(), program.placement.world());
  constexpr double kBytes = 1e6;
  for (StageCosts& stage : costs.stages) {
    stage.input = stage.output = Bytes{static_cast<std::int64_t>(kBytes)};
  }
  costs.network.levels.front().link = {latency, kBytes / (transfer * 1e-3)};
  return simulate(program, costs).makespan.value;
}

void print_row(const Schedule& schedule, const Placement& placement, const char* how) {
  const auto it = made(schedule, placement);
  if (!it) return;
  const DeviceWaits early = waits(*it, false);
  const DeviceWaits announced = waits(*it, true);
  fmt::print("| {} | {} | {} | {} | {} | {} | {} | {} |", schedule.name, placement.world(), how, early.places,
             early.receives, early.sends, early.sums, announced.receives + announced.sends + announced.sums);
  for (const double transfer : {0.05, 0.2, 0.5}) {
    const double time = makespan(it->program, transfer, kBells) / makespan(it->program, transfer, {});
    fmt::print(" {:+.1f} |", 100 * (time - 1));
  }
  fmt::print("\n");
}

}  // namespace

int main() {
  fmt::print(
      "| schedule | ranks | placement | places | receives | sends | sums | announced | 5 % | 20 % | 50 % |\n"
      "|---|---|---|---|---|---|---|---|---|---|---|\n");
  for (const Schedule& schedule : schedules()) {
    for (const int ranks : {2, 4, 8}) {
      print_row(schedule, schedule.place(ranks, schedule.virtual_stages), "own");
    }
    Placement replicated;
    replicated.ranks = {{Rank{0}, Rank{1}}, {Rank{2}, Rank{3}}};
    print_row(schedule, replicated, "2 stages x 2");
  }
}
