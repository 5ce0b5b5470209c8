#include "engine/report/report.h"

#include <fmt/format.h>

#include <filesystem>

namespace stagecraft {

RunFiles read_run(const std::string& run_dir) {
  if (!std::filesystem::is_directory(run_dir)) throw InputError({run_dir, ""}, "no such run directory");
  const auto path = [&](const char* name) {
    std::string file = fmt::format("{}/{}", run_dir, name);
    if (!std::filesystem::exists(file)) {
      throw InputError({file, ""}, "is missing: a run writes it when it ends (or is stopped by a signal)");
    }
    return file;
  };
  RunFiles run;
  run.plan = read_plan(path("plan.json"));
  run.summary = json::read_file<RunSummary>(path("summary.json"));
  const std::string timeline = path("timeline.json");
  run.timeline = timeline_from_chrome_trace(json::parse_file(timeline), timeline);
  run.metrics = read_metrics(path("metrics.jsonl"));
  return run;
}

}  // namespace stagecraft
