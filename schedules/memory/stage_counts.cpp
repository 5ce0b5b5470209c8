#include "schedules/memory/stage_counts.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace stagecraft {
namespace {

/// One stage on one of its ranks, as the list goes by.
struct Holding {
  int in_flight = 0;
  int kept = 0;
  int unweighted = 0;
  std::map<int, int> readers;  // older or current version -> reads of it still to come
};

}  // namespace

std::vector<StageCounts> stage_counts(const ScheduleProgram& program) {
  std::vector<StageCounts> most(program.ranks.empty() ? 0 : to_size(program.placement.stages()));
  for (const auto& list : program.ranks) {
    std::map<StageId, Holding> held;
    std::set<std::pair<StageId, MicroBatch>> recomputed;
    for (const Action& action : list) {
      if (is_compute(action.op)) ++held[action.stage].readers[action.version.value];
      if (action.op == Op::recompute) recomputed.emplace(action.stage, action.micro_batch);
    }
    for (const Action& action : list) {
      if (!is_compute(action.op) && action.op != Op::step) continue;
      if (!program.has_backward(action.stage)) continue;  // what it makes goes on, or is gone
      Holding& stage = held[action.stage];
      StageCounts& peak = most[action.stage.index()];
      const bool kept =
          action.op == Op::recompute ||
          (action.op == Op::forward && !recomputed.contains({action.stage, action.micro_batch}));
      stage.in_flight += (action.op == Op::forward) - is_input_part(action.op);
      stage.kept += kept - is_input_part(action.op);
      stage.unweighted += (action.op == Op::backward_input) - (action.op == Op::backward_weight);
      peak.in_flight = std::max(peak.in_flight, stage.in_flight);
      peak.kept = std::max(peak.kept, stage.kept);
      peak.unweighted = std::max(peak.unweighted, stage.unweighted);
      if (action.op == Op::step) {
        const auto current = stage.readers.lower_bound(action.version.value + 1);
        const auto older = static_cast<int>(std::distance(stage.readers.begin(), current));
        peak.versions = std::max(peak.versions, older + 1);
      }
      if (is_compute(action.op)) {
        const auto read = stage.readers.find(action.version.value);
        if (--read->second == 0) stage.readers.erase(read);
      }
    }
  }
  return most;
}

}  // namespace stagecraft
