#include "schedules/schedule.h"

#include "schedules/generators/assembly.h"

#include <fmt/format.h>

namespace stagecraft {

const std::vector<Schedule>& schedules() {
  static const std::vector<Schedule> all{fill_drain_schedule(), one_f_one_b_schedule(), pipedream_schedule()};
  return all;
}

const Schedule& find_schedule(const std::string& name, const InputPlace& place) {
  std::vector<std::string> names;
  std::string listed;
  for (const Schedule& schedule : schedules()) {
    if (name == schedule.name) return schedule;
    names.emplace_back(schedule.name);
    listed += fmt::format("{}\"{}\"", listed.empty() ? "" : ", ", schedule.name);
  }
  throw InputError(
      place, fmt::format("expected one of {}, found \"{}\"{}", listed, name, did_you_mean(name, names)));
}

}  // namespace stagecraft
