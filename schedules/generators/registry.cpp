#include "schedules/generators/registry.h"

#include "base/error.h"
#include "base/nearest.h"
#include "base/registry.h"

#include <fmt/format.h>

#include <utility>

namespace stagecraft {

namespace {

std::vector<Schedule>& all_schedules() {
  static std::vector<Schedule> all{
      fill_drain_schedule(), one_f_one_b_schedule(), interleaved_1f1b_schedule(), looped_bfs_schedule(),
      zb_h1_schedule(),      zb_h2_schedule(),       interleaved_zb_schedule(),   zb_v_schedule(),
      v_half_schedule(),     v_min_schedule(),       pipedream_schedule(),        two_bw_schedule(),
      auto_schedule(),
  };
  return all;
}

}  // namespace

const std::vector<Schedule>& schedules() { return all_schedules(); }

void add_schedule(Schedule schedule) {
  STAGECRAFT_CHECK(!registries_frozen(),
                   fmt::format("schedule \"{}\": add it before run_command_line()", schedule.name));
  for (const Schedule& other : schedules()) {
    STAGECRAFT_CHECK(other.name != schedule.name,
                     fmt::format("schedule \"{}\": the name is taken", schedule.name));
  }
  STAGECRAFT_CHECK(!schedule.name.empty() && schedule.build, "a schedule needs a name and a build function");
  all_schedules().push_back(std::move(schedule));
}

const Schedule& find_schedule(const std::string& name, const InputPlace& place) {
  std::vector<std::string> names;
  for (const Schedule& schedule : schedules()) {
    if (name == schedule.name) return schedule;
    names.emplace_back(schedule.name);
  }
  throw InputError(place, fmt::format("expected one of \"{}\", found \"{}\"{}", fmt::join(names, "\", \""),
                                      name, did_you_mean(name, names)));
}

}  // namespace stagecraft
