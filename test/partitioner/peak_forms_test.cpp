// The memory of a program as a function of its stages' costs against the proof.

#include "schedules/checker/peak_forms.h"

#include "schedules/checker/checker.h"
#include "schedules/generators/registry.h"
#include "schedules/lowering/lowering.h"
#include "test/partitioner/random_layout.h"
#include "test/support/catch.h"

#include <rapidcheck.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace stagecraft {
namespace {

TEST_CASE("a program's peaks as forms are the proved ones, whatever the stages cost", "[peak_forms]") {
  CHECK(rc::check("peak forms", [] {
    const Schedule schedule = *rc::gen::suchThat(
        rc::gen::elementOf(schedules()), [](const Schedule& s) { return s.synchronous && !s.searched; });
    const Cluster cluster = test::random_cluster();
    const int layers = *rc::gen::inRange(4, 12);
    const planning::Layout layout =
        test::random_layout(schedule, std::min(cluster.devices(), layers), layers);
    const Placement placement = layout.placement();
    ScheduleRequest request;
    request.placement = placement;
    request.group_sizes = {*rc::gen::inRange(1, 9)};
    const bool repeats = *rc::gen::inRange(0, 2) == 0;
    if (repeats) {
      const Recompute setting = *rc::gen::element(Recompute::all_but_last, Recompute::all);
      request.recompute.assign(placement.ranks.size(), setting);
    }
    std::vector<Bytes> ties(*rc::gen::inRange<std::size_t>(0, 3));
    for (Bytes& bytes : ties) {
      bytes = Bytes{*rc::gen::inRange<std::int64_t>(0, std::int64_t{1} << 26U)};
      std::vector<StageId>& holders = request.ties.emplace_back();
      for (int k = 0; k < 2; ++k) holders.emplace_back(*rc::gen::inRange(0, layout.stages()));
      std::ranges::sort(holders);
    }
    LoweredProgram program;
    try {
      program = lower(schedule.generate(request));
    } catch (const InputError&) {  // not for so many micro-batches
      RC_DISCARD("not for this schedule");
    }
    const PeakForms forms(program, ties);
    for (int costs = 0; costs < 3; ++costs) {
      const Measurement measurement = test::random_measurement(layers);
      std::vector<int> cuts;
      for (int s = 1; s < layout.stages(); ++s) {
        const int least = cuts.empty() ? 1 : cuts.back() + 1;
        cuts.push_back(*rc::gen::inRange(least, layers - (layout.stages() - s) + 1));
      }
      CostTable table;
      table.network = cluster.network();
      table.ties = ties;
      for (int s = 0; s < layout.stages(); ++s) {
        table.stages.push_back(stage_costs(measurement, s == 0 ? 0 : cuts[to_size(s) - 1],
                                           s + 1 == layout.stages() ? layers : cuts[to_size(s)], 2));
      }
      const Proof proof = check(program, &table);
      RC_ASSERT(proof.memory.size() == forms.ranks());
      for (std::size_t r = 0; r < forms.ranks(); ++r) {
        std::vector<const StageCosts*> held;
        for (const StageId stage : forms.stages(r)) held.push_back(&table.stages[stage.index()]);
        RC_ASSERT(forms.peak(r, held, table.loss) == proof.memory[r].peak);
      }
    }
    RC_CLASSIFY(layout.replicated(), "replicated");
    RC_CLASSIFY(layout.stages_per_rank > 1, "several stages per rank");
    RC_CLASSIFY(repeats, "recomputed");
    RC_CLASSIFY(!ties.empty(), "tied");
  }));
}

}  // namespace
}  // namespace stagecraft
