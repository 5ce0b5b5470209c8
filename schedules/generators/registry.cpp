#include "stagecraft/schedules/generators/registry.h"

#include "stagecraft/base/error.h"

#include <fmt/format.h>

namespace stagecraft {

const std::vector<Schedule>& schedules() {
  static const std::vector<Schedule> all{
      fill_drain_schedule(), one_f_one_b_schedule(), interleaved_1f1b_schedule(), looped_bfs_schedule(),
      zb_h1_schedule(),      zb_h2_schedule(),       interleaved_zb_schedule(),   zb_v_schedule(),
      v_half_schedule(),     v_min_schedule(),       pipedream_schedule(),        two_bw_schedule(),
      auto_schedule(),
  };
  return all;
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
