#include "stagecraft/cli/drawing.h"

#include "stagecraft/base/table.h"
#include "stagecraft/schedules/simulator/simulator.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace stagecraft::cli {
namespace {

void repeat(Timeline& timeline, Seconds period, int times) {
  std::vector<Event> all;
  all.reserve(timeline.events.size() * static_cast<std::size_t>(times));
  const auto& events = timeline.events;
  for (auto first = events.begin(); first != events.end();) {  // rank by rank, to stay sorted
    auto last = first;
    while (last != events.end() && last->rank == first->rank) ++last;
    for (int i = 0; i < times; ++i) {
      for (auto event = first; event != last; ++event) {
        Event moved = *event;
        moved.begin += period * static_cast<double>(i);
        moved.end += period * static_cast<double>(i);
        moved.step += i;
        all.push_back(moved);
      }
    }
    first = last;
  }
  timeline.events = std::move(all);
}

void repeat(MemoryCurve& curve, Seconds period, int times) {
  const std::vector<MemoryCurve::Point> once = curve.points;
  for (int i = 1; i < times; ++i) {
    for (const MemoryCurve::Point& point : once)
      curve.points.push_back({point.at + period * static_cast<double>(i), point.held});
  }
}

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

Panel draw(const InputProgram& input, const LoweredProgram& program, const Proof& proof, int repeats) {
  const CostTable& costs = *input.costs();
  Panel panel;
  const Simulation simulation = simulate(program, costs, &panel.timeline);
  panel.timeline.title = summary(input) + (repeats > 1 ? fmt::format(", {} steps", repeats) : "");
  panel.capacity = input.capacity();
  const auto has_bytes = [](const MemoryProof& memory) { return memory.peak > Bytes{}; };
  const bool bytes = std::any_of(proof.memory.begin(), proof.memory.end(), has_bytes);
  if (bytes) panel.memory = memory_curves(program, costs, panel.timeline);
  repeat(panel.timeline, simulation.makespan, repeats);
  for (MemoryCurve& curve : panel.memory) repeat(curve, simulation.makespan, repeats);
  panel.figures = {"makespan " + format_duration(simulation.makespan * repeats),
                   "bubble " + format_percent(simulation.bubble)};
  if (bytes) panel.figures.push_back(memory_figure(input, proof));
  return panel;
}

}  // namespace stagecraft::cli
