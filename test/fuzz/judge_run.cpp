#include "test/fuzz/judge_run.h"

#include "base/error.h"
#include "base/json.h"
#include "engine/records/view/drawn_timeline.h"
#include "engine/records/view/page.h"
#include "schedules/pictures/text.h"

namespace stagecraft::fuzz {

RunFiles empty_run() {
  RunFiles run;
  run.plan.model = "two layers";
  run.plan.stages = {{0, 1, {Rank{0}}}, {1, 2, {Rank{1}}}};
  run.plan.micro_batches = 2;
  StageCosts costs;
  costs.forward = costs.backward_input = costs.backward_weight = costs.step = Seconds{1e-3};
  run.plan.costs = CostTable{{costs, costs}, {{{2, {Seconds{0}, 1e9}}}}, {}};
  run.plan.predicted = predict(run.plan);
  return run;
}

void judge(const RunFiles& run) {
  const RunReport report = make_report(run);
  require(json::read<RunReport>(json::write(report), {"x", ""}).stages == report.stages, "JSON reads back");
  require(!report_text(report).empty(), "a report says something");
  const Json view{{"timeline", drawn_timeline(run.timeline)}, {"shares", rank_shares(run.timeline)}};
  require(page_of(view).ends_with("</html>\n"), "a page ends");
  try {
    (void)report_svg(report, run);
  } catch (const InputError&) {
    require(run.timeline.events.empty(), "a timeline with events is drawn");
  }
}

}  // namespace stagecraft::fuzz
