#include "stagecraft/base/files.h"
#include "stagecraft/base/json.h"
#include "stagecraft/engine/report/report.h"
#include "stagecraft/schedules/interchange/chrome_trace.h"

#include <fmt/format.h>

#include <string_view>

namespace stagecraft {
namespace {

constexpr const char* kMissing =
    "is missing: a run writes it when it ends (or is stopped by a signal). `stagecraft train CONFIG "
    "--resume` "
    "goes on with a run that was killed, and writes the file for one that had made all its steps";

}  // namespace

RunFiles read_run(const std::string& run_dir) {
  if (!is_folder(run_dir)) throw InputError({run_dir, ""}, "no such run directory");
  const auto path = [&](const char* name) {
    std::string file = fmt::format("{}/{}", run_dir, name);
    if (!is_there(file)) {
      const bool at_start = std::string_view(name) == "plan.json";
      throw InputError({file, ""}, at_start ? "is missing, which every run writes when it starts" : kMissing);
    }
    return file;
  };
  RunFiles run;
  run.plan = read_plan(path("plan.json"));
  run.summary = json::read_file<RunSummary>(path("summary.json"));
  const std::string timeline = path("timeline.json");
  run.timeline = timeline_from_chrome_trace(json::parse_file(timeline), timeline);
  run.metrics = read_metrics(path("metrics.jsonl"), &run.broken_lines);
  return run;
}

}  // namespace stagecraft
