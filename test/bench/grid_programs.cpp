// Every program of the schedules' grid as lowered, proved and simulated, written to a folder, to compare two
// builds byte by byte (scripts/bench/unchanged.sh).
//
//   bench_grid_programs FOLDER
//
// FOLDER gets a file per schedule with its programs of test/schedules/program_grid.h: their actions, what the
// checker proves, and what the simulator makes of random costs; the same order for every other kind of
// transport, where that gives other actions.

#include "base/files.h"
#include "schedules/checker/checker.h"
#include "schedules/lowering/lowering.h"
#include "schedules/program/program_text.h"
#include "schedules/simulator/simulator.h"
#include "test/schedules/program_grid.h"
#include "test/schedules/random_costs.h"
#include "test/schedules/random_rules.h"

#include <fmt/format.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

using namespace stagecraft;

namespace {

std::string proof_text(const Proof& proof) {
  std::string text;
  for (const Finding& finding : proof.findings) text += "finding " + finding.message + "\n";
  for (const StageProof& stage : proof.stages) {
    text += fmt::format("stage {} rank {}: {} in flight, {} versions, staleness {} to {}\n",
                        stage.stage.value, stage.rank.value, stage.in_flight, stage.versions_alive,
                        stage.staleness_min, stage.staleness_max);
  }
  for (const MemoryProof& rank : proof.memory) {
    text += fmt::format("rank {}: peak {} = {} + {} + {} + {} + {} + {} + {} at {}\n", rank.rank.value,
                        rank.peak.value, rank.weights.value, rank.versions.value, rank.gradients.value,
                        rank.optimizer_state.value, rank.kept.value, rank.transfers.value,
                        rank.transient.value, rank.at);
  }
  return text;
}

std::string times_text(const LoweredProgram& program, const CostTable& costs) {
  Simulator simulator(program);
  const Simulation& simulation = simulator.run(costs);
  std::string text =
      fmt::format("makespan {:.17g}, bubble {:.17g}\n", simulation.makespan.value, simulation.bubble);
  for (const RankTimes& rank : simulation.ranks) {
    text += fmt::format("{:.17g} {:.17g} {:.17g} waits {:.17g} {:.17g} {:.17g} {:.17g} end {:.17g}\n",
                        rank.forward.value, rank.backward.value, rank.step.value, rank.wait_activation.value,
                        rank.wait_gradient.value, rank.wait_send.value, rank.wait_other.value,
                        rank.idle_end.value);
  }
  for (const LostTime& lost : simulator.lost_time(costs)) {
    text += fmt::format("lost {:.17g} {:.17g} {:.17g} {:.17g} {:.17g} {:.17g}\n", lost.imbalance.value,
                        lost.dependency.value, lost.exposed_transfer.value, lost.blocked_send.value,
                        lost.memory.value, lost.barrier.value);
  }
  return text;
}

std::string slots_text(const ScheduleProgram& program) {
  const auto least = least_channel_slots(program);
  if (!least) return "no number of slots works\n";
  std::string text = fmt::format("least slots {}, {} in all{}:", least->uniform, least->total,
                                 least->exact ? ", exact" : "");
  for (const ChannelSlots& channel : least->channels) {
    text += fmt::format(" {}:{} of {}", channel.rank.value, channel.slots, channel.transfers);
  }
  return text + "\n";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    fmt::print(stderr, "usage: bench_grid_programs FOLDER\n");
    return 2;
  }
  const std::string folder = argv[1];
  std::filesystem::create_directories(folder);
  auto placements = test::straight_placements();
  for (auto& odd : test::odd_placements()) placements.push_back(std::move(odd));
  std::map<std::string, std::string> files;
  std::uint64_t seed = 0;
  for (const test::GridProgram& entry : test::program_grid(placements)) {
    const Placement& placement = entry.program.placement;
    const CostTable costs = test::RandomCosts(seed++).table(placement.stages(), placement.world(), true);
    std::string& text = files[entry.program.schedule];
    text += fmt::format("== {}\n{}", entry.name, to_text(entry.program));
    const Proof proof = check(entry.program, &costs);
    text += proof_text(proof);
    if (proof.accepted()) text += times_text(entry.program, costs);
    if (entry.schedule == nullptr || entry.request.group_sizes[0] != 3) continue;
    const ScheduleProgram program = entry.schedule->generate(entry.request);
    text += slots_text(program);
    const CostTable sizes = test::sizes_for(placement.stages());
    const std::string usual = to_text(lower(program));
    for (const std::string& rules : test::all_rules()) {
      std::string lowered;
      try {
        lowered = to_text(lower(program, {.rules = transport_rules(rules), .costs = &sizes}));
      } catch (const RefusedError& error) {
        lowered = std::string(error.what()) + "\n";
      }
      text += fmt::format("-- {}\n{}", rules, lowered == usual ? "the same\n" : lowered);
    }
  }
  for (const auto& [schedule, text] : files)
    write_file_atomically(fmt::format("{}/{}.txt", folder, schedule), text);
}
