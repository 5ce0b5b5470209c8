#pragma once

// What a run directory tells of how its run is.

#include "base/describe.h"
#include "engine/records/metrics/run_paths.h"

#include <array>
#include <string>

namespace stagecraft {

enum class RunPhase : std::uint8_t {
  not_begun,  ///< no plan yet, or no folder
  starting,   ///< its process is there, and no step of this session is made yet
  running,
  silent,    ///< of another machine or container, and nothing was written for long: it cannot be told
  finished,  ///< all steps are made
  stopped,   ///< by a signal, behind a checkpoint
  failed,    ///< it said why (exit.json)
  killed,    ///< its process is gone, and it said nothing
};
template <>
inline constexpr std::array enum_names<RunPhase>{"not begun", "starting", "running", "silent",
                                                 "finished",  "stopped",  "failed",  "killed"};

struct RunCondition {
  RunPhase phase = RunPhase::not_begun;
  std::string words;  ///< for people: why it failed, where it runs
};

/// `quiet`: seconds since anything was written to metrics.jsonl; `step`: its usual time. Reads a few small
/// files, and takes no lock. Throws nothing: what cannot be read is told in words.
[[nodiscard]] RunCondition condition_of(const RunPaths& paths, double quiet, double step_seconds);

}  // namespace stagecraft
