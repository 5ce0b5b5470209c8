#include "schedules/schedule.h"

#include "schedules/generators/assembly.h"

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
  std::string listed;
  for (const Schedule& schedule : schedules()) {
    if (name == schedule.name) return schedule;
    names.emplace_back(schedule.name);
    listed += fmt::format("{}\"{}\"", listed.empty() ? "" : ", ", schedule.name);
  }
  throw InputError(
      place, fmt::format("expected one of {}, found \"{}\"{}", listed, name, did_you_mean(name, names)));
}

void Schedule::check(const ScheduleRequest& request, const InputPlace& options) const {
  const auto refuse = [&](const char* option, const std::string& why) {
    throw InputError(options.file.empty() ? InputPlace{} : InputPlace{options.file, options.pointer + option},
                     why);
  };
  if (request.vertical_sync && !takes_vertical_sync) {
    refuse("/vertical_sync",
           synchronous
               ? fmt::format("{} is synchronous: its micro-batches read one version anyway; vertical "
                             "sync is for pipedream",
                             name)
               : fmt::format("{} decides itself which version a micro-batch reads; vertical sync is for "
                             "pipedream",
                             name));
  }
  if (request.warmup_extra < 0) {
    refuse("/warmup_extra", fmt::format("expected at least 0, found {}", request.warmup_extra));
  }
  if (request.warmup_extra > 0 && !takes_warmup_extra) {
    refuse("/warmup_extra", fmt::format("{} takes no warmup_extra; 1f1b does", name));
  }
  if (request.clip && !clips) {
    refuse(
        "/agree_norm",
        fmt::format("{} cannot clip by the global norm: its stages step at different times, so there is no "
                    "moment at which all gradients of a step exist; use a synchronous schedule, or no "
                    "gradient_clipping",
                    name));
  }
  validate_settings(request.recompute, request.placement.stages());
  if (synchronous && request.group_sizes.size() != 1) {
    throw InputError(fmt::format("{} is synchronous: a program is one step with one group, not {}", name,
                                 request.group_sizes.size()));
  }
  if (placement != PlacementKind::straight)
    (void)stagecraft::virtual_stages(request.placement, placement, name);
}

ScheduleProgram Schedule::generate(const ScheduleRequest& request) const {
  check(request);
  ScheduleProgram program = build(request);
  insert_recomputes(program, request.recompute);
  return program;
}

Placement Schedule::place(int ranks, int stages_a_rank) const {
  const auto refuse = [&](const char* expected) {
    throw InputError(fmt::format("{} stages a rank: {} takes {}", stages_a_rank, name, expected));
  };
  switch (placement) {
    case PlacementKind::straight:
      if (stages_a_rank != 1) refuse("one");
      return Placement::straight(ranks);
    case PlacementKind::loop:
      if (stages_a_rank < 1) refuse("at least one");
      return Placement::looped(ranks, stages_a_rank);
    case PlacementKind::v:
      if (stages_a_rank != 2) refuse("two");
      break;
  }
  return Placement::zigzag(ranks, stages_a_rank);
}

}  // namespace stagecraft
