#include "cli/drawing.h"

#include "base/table.h"
#include "schedules/simulator/simulator.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace stagecraft::cli {
namespace {

std::string memory_figure(const InputProgram& input, const Proof& proof) {
  const auto worst =
      std::max_element(proof.memory.begin(), proof.memory.end(),
                       [](const MemoryProof& a, const MemoryProof& b) { return a.peak < b.peak; });
  const auto capacity = input.capacity();
  return fmt::format("peak {} on rank {}{}", format_bytes(worst->peak), worst->rank.value,
                     capacity ? fmt::format(" ({} {})", worst->peak > *capacity ? "more than the" : "of",
                                            format_bytes(*capacity))
                              : "");
}

}  // namespace

Panel draw(const InputProgram& input, const LoweredProgram& program, const Proof& proof) {
  const CostTable& costs = *input.costs();
  Panel panel;
  const Simulation simulation = simulate(program, costs, &panel.timeline);
  const bool several = input.synchronous && program.groups() > 1;
  const std::string model = input.plan && !input.plan->model.empty() ? input.plan->model + ": " : "";
  panel.timeline.title =
      model + summary(input) + (several ? fmt::format(", {} steps", program.groups()) : "");
  panel.capacity = input.capacity();
  const auto has_bytes = [](const MemoryProof& memory) { return memory.peak > Bytes{}; };
  const bool bytes = std::any_of(proof.memory.begin(), proof.memory.end(), has_bytes);
  if (bytes) panel.memory = memory_curves(program, costs, panel.timeline);
  panel.figures = {"makespan " + format_duration(simulation.makespan),
                   "bubble " + format_percent(simulation.bubble)};
  if (bytes) panel.figures.push_back(memory_figure(input, proof));
  return panel;
}

}  // namespace stagecraft::cli
