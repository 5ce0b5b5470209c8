#include "engine/records/view/run_condition.h"

#include "base/error.h"
#include "base/failure.h"
#include "base/files.h"
#include "base/json.h"
#include "engine/records/metrics/exit_record.h"
#include "engine/records/metrics/run_holder.h"

#include <fmt/format.h>

#include <algorithm>

namespace stagecraft {
namespace {

bool there(const std::string& path) {
  try {
    return is_there(path);
  } catch (const InputError&) {
    return false;
  }
}

/// That it is there says the most.
RunCondition of_exit(const std::string& file) try {
  const auto record = json::read_file<ExitRecord>(file);
  if (record.code == exit_code::kStopped) return {RunPhase::stopped, record.message};
  return {RunPhase::failed, fmt::format("rank {}, {}: {}", record.rank.value, record.action, record.message)};
} catch (const InputError& error) {
  return {RunPhase::failed, error.what()};
}

/// One key of a summary, which may be another version's.
RunCondition of_summary(const std::string& file) try {
  const Json summary = json::parse_file(file);
  if (!summary.is_object()) json::detail::wrong({file, ""}, summary, "an object");
  int signal = 0;
  if (summary.contains("stopped_by_signal"))
    json::read_value(summary["stopped_by_signal"], {file, "/stopped_by_signal"}, signal, {});
  if (signal == 0) return {RunPhase::finished, ""};
  return {RunPhase::stopped, fmt::format("by signal {}", signal)};
} catch (const InputError& error) {
  return {RunPhase::finished, error.what()};
}

}  // namespace

RunCondition condition_of(const RunPaths& paths, double quiet, double step_seconds) {
  try {
    const bool held = there(paths.lock());
    const RunHolder holder = held ? read_holder(paths.lock()) : RunHolder{};
    const bool alive = is_alive(holder);
    if (!there(paths.plan()))
      return {alive ? RunPhase::starting : RunPhase::not_begun, alive ? "no plan yet" : ""};
    if (!held && !there(paths.summary()))
      return {RunPhase::killed, "no process has held this folder: it is a copy"};
    const bool over = there(paths.summary());  // a session removes it behind its first step
    if (!alive && there(paths.exit_record())) return of_exit(paths.exit_record());
    if (over) {
      RunCondition condition = of_summary(paths.summary());
      // A process may stay behind its run; one that goes on with a stopped run has its first step before it.
      if (!alive || condition.phase == RunPhase::finished) return condition;
    }
    if (alive) return {over || !there(paths.metrics()) ? RunPhase::starting : RunPhase::running, ""};
    if (has_ended(holder)) return {RunPhase::killed, "its process is gone, and it left no word"};
    constexpr double kPatience = 60;
    const double bound = std::max(kPatience, 20 * step_seconds);
    const std::string where = holder.machine.empty() ? "" : "on " + holder.machine;
    return {quiet > bound ? RunPhase::silent : RunPhase::running, where};
  } catch (const std::exception& error) {
    return {RunPhase::silent, error.what()};
  }
}

}  // namespace stagecraft
