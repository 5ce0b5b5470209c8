#pragma once

// Schedules as options name them: "NAME[:SETTING,...]", as in "1f1b:warmup_extra=2" or
// "pipedream:vertical_sync".

#include "partitioner/plan/plan.h"
#include "schedules/generators/schedule.h"

#include <optional>
#include <string>
#include <vector>

namespace CLI {
class Option;
}

namespace stagecraft::cli {

/// One schedule with the settings that were given.
struct ScheduleAsked {
  std::string name;
  std::optional<int> warmup_extra{};
  std::optional<bool> vertical_sync{};

  /// Puts the schedule in the place of `choice`. Settings that were not given stay as they are, if the name
  /// does; those of another schedule go with it.
  void apply_to(ScheduleChoice& choice) const;
};

/// What "all" stands for in a list.
enum class AllSchedules {
  registered,   ///< every schedule
  synchronous,  ///< those that train as one device would; others have to be named
};

/// One schedule. Throws InputError at `place`: for an unknown name or setting with the nearest one, for a
/// list with the verb that takes it.
[[nodiscard]] ScheduleAsked schedule_asked(const std::string& text, const InputPlace& place);

/// Several, separated by commas, each of them once; a setting behind a comma belongs to the schedule before
/// it. Never empty. Throws InputError as schedule_asked does.
[[nodiscard]] std::vector<ScheduleAsked> schedules_asked(const std::string& list, AllSchedules all,
                                                         const InputPlace& place);

/// The settings that a schedule takes behind its name.
[[nodiscard]] std::vector<std::string> settings_of(const Schedule& schedule);

/// The names of all schedules, for completion.
[[nodiscard]] std::vector<std::string> schedule_words();

/// All schedules with their summaries, papers and settings, for --help.
[[nodiscard]] std::string schedules_text();

}  // namespace stagecraft::cli
