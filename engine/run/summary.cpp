#include "stagecraft/engine/run/summary.h"

#include "stagecraft/base/json.h"
#include "stagecraft/engine/run/devices.h"
#include "stagecraft/engine/transport/cores.h"
#include "stagecraft/models/data/buckets.h"
#include "stagecraft/schedules/interchange/chrome_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace stagecraft {
namespace {

/// What is to be added to a rank's event times to have them on the reporter's clock.
Seconds shift_of(const Json& theirs, const Json& mine) {
  const auto number = [](const Json& json, const char* key) { return Seconds{json.at(key).get<double>()}; };
  const Seconds origins = number(theirs, "origin") - number(mine, "origin");
  if (theirs.at("boot") == mine.at("boot")) return origins;
  return origins - (number(theirs, "together") - number(mine, "together"));
}

}  // namespace

RunResults gather_results(const RunSetup& setup, const Worker& worker, Transport& transport,
                          Seconds together) {
  RunResults results;
  for (const auto& rank : transport.all_gather(
           {static_cast<double>(worker.peak_bytes().value), static_cast<double>(worker.skipped_steps())})) {
    results.peak.emplace_back(static_cast<std::int64_t>(rank.front()));
    results.skipped_steps = std::max(results.skipped_steps, static_cast<std::int64_t>(rank.back()));
  }
  Timeline mine;
  mine.events = worker.events();
  Json text;
  text["boot"] = transport::boot_id();
  text["origin"] = worker.clock_origin().value;
  text["together"] = together.value;
  text["trace"] = to_chrome_trace(mine);
  Timeline& timeline = results.timeline;
  timeline.title = fmt::format("{}, {}", setup.materials().model.name, setup.plan().schedule.name);
  transport.gather_text(setup.reporter(), text.dump(), [&](Rank rank, const std::string& written) {
    timeline.rank_names.push_back(setup.rank_name(rank));
    const Json theirs = Json::parse(written);
    const Seconds shift = shift_of(theirs, text);
    for (Event event :
         timeline_from_chrome_trace(theirs.at("trace"), fmt::format("events of rank {}", rank.value))
             .events) {
      event.begin += shift;
      event.end += shift;
      timeline.events.push_back(event);
    }
  });
  if (transport.rank() != setup.reporter()) return results;
  Seconds first{std::numeric_limits<double>::infinity()};
  for (const Event& event : timeline.events) first = std::min(first, event.begin);
  for (Event& event : timeline.events) {
    event.begin -= first;
    event.end -= first;
  }
  return results;
}

RunSummary summary_of(const RunSetup& setup, const RunResults& results, const RunReporter& reporter,
                      std::int64_t steps, int stopped_by) {
  RunSummary summary;
  summary.steps = steps;
  summary.stopped_by_signal = stopped_by;
  summary.skipped_steps = results.skipped_steps;
  summary.measured_steps = reporter.step_times().steps();
  summary.step = reporter.step_times().times();
  const double median = summary.step.median.value;
  summary.samples_per_second = median > 0 ? static_cast<double>(setup.config().train_batch_size) / median : 0;
  if (const double tokens = tokens_per_sample(setup.materials()); tokens > 0) {
    summary.tokens_per_second = summary.samples_per_second * tokens;
  }
  const double computed = computed_positions(*setup.materials().data);
  if (computed < 1) summary.computed_positions = computed;
  // A multiply-add is two operations; backward has two products for each of forward's. Of samples that are cut
  // a share counts, as if attention did not grow faster than they do.
  summary.flops_per_second = 6.0 * static_cast<double>(setup.materials().model.multiply_adds()) * computed *
                             summary.samples_per_second;
  if (const auto peak = peak_flops_of(setup.config(), setup.world())) {
    summary.flops_utilization = summary.flops_per_second / *peak;
  }
  if (setup.plan().predicted) summary.predicted_step = setup.plan().predicted->step;
  summary.last_step = reporter.last_step();
  summary.last_validation = reporter.last_validation();
  summary.peak = results.peak;
  summary.proved_peak = setup.programs().memory();
  return summary;
}

}  // namespace stagecraft
