#include "base/file_kind.h"
#include "base/files.h"
#include "base/json.h"
#include "base/near_path.h"
#include "engine/records/metrics/metrics_tally.h"
#include "engine/records/metrics/run_paths.h"
#include "engine/records/report/rank_record.h"
#include "engine/records/report/report.h"
#include "schedules/interchange/chrome_trace.h"

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

namespace stagecraft {
namespace {

constexpr const char* kMissing =
    "is missing: a run writes it when it ends (or is stopped by a signal). `stagecraft train CONFIG "
    "--resume` "
    "goes on with a run that was killed, and writes the file for one that had made all its steps";

/// Of a run that goes on, or was killed: what metrics.jsonl and the ranks' last records tell.
void take_what_is_there(RunFiles& run, const RunPaths& paths) {
  MetricsTally tally;
  for (const MetricsRecord& record : run.metrics) tally.add(record);
  if (tally.steps() == 0) {
    const bool saved = is_folder(paths.checkpoints()) && !names_in(paths.checkpoints()).empty();
    throw InputError({paths.root, ""},
                     saved ? "has checkpoints and no measured step: there is nothing to report. Those of "
                             "Pipeline.save in Python have none; its steps say themselves what they took"
                           : "its run has made no step yet: there is nothing to report");
  }
  tally.tell(run.summary);
  if (run.plan.predicted) run.summary.proved_peak = run.plan.predicted->memory;
  take_live_records(run, paths);
}

}  // namespace

void take_live_records(RunFiles& run, const RunPaths& paths) {
  auto [records, left_out] = read_live_records(paths, run.plan.placement().world());
  run.left_out = std::move(left_out);
  if (records.empty()) return;
  run.summary.peak.assign(static_cast<std::size_t>(run.plan.placement().world()), Bytes{});
  run.summary.core_shares.assign(run.summary.peak.size(), 0);
  for (const RankRecord& record : records) {
    run.summary.peak[record.rank.index()] = record.peak;
    run.summary.core_shares[record.rank.index()] = record.core_share.value_or(0);
  }
  run.timeline = merged(fmt::format("{}, {}", run.plan.model, run.plan.schedule.name), std::move(records), 0);
}

RunFiles read_run(const std::string& run_dir) {
  if (!is_there(run_dir)) throw InputError({run_dir, ""}, "no such run directory" + path_meant(run_dir));
  const RunPaths paths{run_dir};
  if (is_there(paths.lock()) && !is_there(paths.plan())) {
    throw InputError({run_dir, ""}, "its run has no plan yet: there is nothing to report");
  }
  if (!is_folder(run_dir) || !is_there(paths.plan())) {
    throw InputError({run_dir, ""}, fmt::format("is {}; a run directory is needed here", kind_at(run_dir)));
  }
  const auto of_run = {paths.lock(), paths.config(), paths.metrics(), paths.summary(), paths.checkpoints()};
  if (std::ranges::none_of(of_run, [](const std::string& its) { return is_there(its); })) {
    throw InputError({run_dir, ""}, "has a plan and nothing else of a run; a run directory is needed here");
  }
  const auto there = [](const std::string& file, const char* otherwise) {
    if (!is_there(file)) throw InputError({file, ""}, otherwise);
    return file;
  };
  RunFiles run;
  run.plan = read_plan(paths.plan());
  run.metrics = read_metrics(paths.metrics(), &run.broken_lines);
  run.ended = is_there(paths.summary());
  if (!run.ended) {
    take_what_is_there(run, paths);
    return run;
  }
  run.summary = json::read_file<RunSummary>(paths.summary());
  const std::string timeline = there(paths.timeline(), kMissing);
  run.timeline = timeline_from_chrome_trace(json::parse_file(timeline), timeline);
  return run;
}

}  // namespace stagecraft
