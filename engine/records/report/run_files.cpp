#include "base/file_kind.h"
#include "base/files.h"
#include "base/json.h"
#include "engine/records/metrics/run_paths.h"
#include "engine/records/report/report.h"
#include "schedules/interchange/chrome_trace.h"

#include <fmt/format.h>

#include <string>

namespace stagecraft {
namespace {

constexpr const char* kMissing =
    "is missing: a run writes it when it ends (or is stopped by a signal). `stagecraft train CONFIG "
    "--resume` "
    "goes on with a run that was killed, and writes the file for one that had made all its steps";

}  // namespace

RunFiles read_run(const std::string& run_dir) {
  if (!is_there(run_dir)) throw InputError({run_dir, ""}, "no such run directory");
  const RunPaths run_paths{run_dir};
  if (!is_folder(run_dir) || !is_there(run_paths.plan())) {
    throw InputError({run_dir, ""}, fmt::format("is {}; a run directory is needed here", kind_at(run_dir)));
  }
  const auto there = [](const std::string& file, const char* otherwise) {
    if (!is_there(file)) throw InputError({file, ""}, otherwise);
    return file;
  };
  const RunPaths paths{run_dir};
  RunFiles run;
  run.plan = read_plan(there(paths.plan(), "is missing, which every run writes when it starts"));
  run.summary = json::read_file<RunSummary>(there(paths.summary(), kMissing));
  const std::string timeline = there(paths.timeline(), kMissing);
  run.timeline = timeline_from_chrome_trace(json::parse_file(timeline), timeline);
  run.metrics = read_metrics(there(paths.metrics(), kMissing), &run.broken_lines);
  return run;
}

}  // namespace stagecraft
