#pragma once

// The run that a config, a plan and a start make. Nothing here reads a file, measures, or asks the machine: the same
// arguments give the same run.

#include "engine/config/config.h"
#include "engine/records/settings/resume_change.h"
#include "engine/run/resolve/find_plan.h"
#include "engine/run/resolve/plan_request.h"
#include "engine/run/resolve/training_inputs.h"
#include "partitioner/plan/plan.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace stagecraft {

/// Where a run begins: at 0, or behind a checkpoint.
struct StartPoint {
  std::int64_t step = 0;                ///< steps made already
  bool validation_owed = false;         ///< and the validation due after them was not
  std::string checkpoint;               ///< folder; "" for a fresh start
  std::vector<ResumeChange> changes{};  ///< of the config, by this resume and those before
};
template <class V>
void describe(V& v, StartPoint& s) {
  v.required("step", s.step, "steps made already");
  v.required("validation_owed", s.validation_owed, "the validation due after them was not made");
  v.required("checkpoint", s.checkpoint, "folder; empty for a fresh start");
  v.optional("changes", s.changes, "of the config, by resumes");
}

/// All of a run but its data and its weights: what rank 0 tells the others.
struct ResolvedRun {
  /// Effective: every inferred value is in it, and it reads back as a config that does the same.
  RunConfig config;
  Plan plan;  ///< as it is written and read back, so that every rank has the same times to the last bit
  StartPoint start;
};
template <class V>
void describe(V& v, ResolvedRun& r) {
  v.required("config", r.config, "effective");
  v.required("plan", r.plan, "of the run");
  v.required("start", r.start, "where it begins");
}

struct Resolution {
  ResolvedRun run;
  std::vector<std::string> notes;  ///< for people
};

/// `file` names the config in errors. `threads`: operator threads of a rank, where the config leaves them open. Throws
/// InputError (a plan for another run, keys that contradict it, a run without a step), RefusedError (skips that do not
/// fit).
[[nodiscard]] Resolution resolve(RunConfig config, const std::string& file, const TrainingInputs& inputs,
                                 FoundPlan found, StartPoint start, const std::optional<World>& world,
                                 int threads);

}  // namespace stagecraft
