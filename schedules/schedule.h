#pragma once

// Schedules: generators of programs. One file a schedule, each citing its paper; this is the list of them.

#include "schedules/program.h"

#include <string>
#include <vector>

namespace stagecraft {

/// What a generator is asked for.
struct ScheduleRequest {
  Placement placement{};
  std::vector<int> group_sizes{};  ///< synchronous: one group. All >= 1.
  bool vertical_sync =
      false;          ///< pipedream: a micro-batch reads the same version on every stage (SOSP'19, 3.3)
  bool clip = false;  ///< an agree_norm before each step
};

/// A schedule as users name it in `pipeline.schedule`.
struct Schedule {
  const char* name;
  const char* summary;  ///< one line for --help and docs
  const char* paper;
  bool synchronous;  ///< all micro-batches of a step read the same version; a step ends with a flush
  ScheduleProgram (*generate)(const ScheduleRequest&);
  /// Most micro-batches in flight (forward done, backward not) on `stage`, as the planner's memory model
  /// needs it before any program exists. Equal to what the checker derives; a test holds the two together.
  int (*in_flight)(const Placement&, StageId stage, int micro_batches);
  /// Most versions of `stage`'s weights alive at once, the current one included.
  int (*versions)(const Placement&, StageId stage, const std::vector<int>& group_sizes, bool vertical_sync);
};

[[nodiscard]] const std::vector<Schedule>& schedules();
/// Throws InputError naming the nearest when there is none of that name; `place` is where the name was read.
[[nodiscard]] const Schedule& find_schedule(const std::string& name, const InputPlace& place = {});

/// Forward only, for validation: loads, forwards and one report for the whole segment. Needs no schedule.
[[nodiscard]] ScheduleProgram validation_program(const Placement& placement, int micro_batches);

}  // namespace stagecraft
