#include "schedules/generators/schedule.h"

#include "base/place_error.h"
#include "schedules/program/step_program.h"

#include <fmt/format.h>

namespace stagecraft {
namespace {

/// Refusals are for people as they are; anything else names the schedule.
ScheduleProgram built(const Schedule& schedule, const ScheduleRequest& request) {
  try {
    return schedule.build(request);
  } catch (const RefusedError&) {
    throw;
  } catch (...) {
    std::rethrow_exception(place_error(
        std::current_exception(),
        fmt::format("schedule \"{}\", built for {} stages", schedule.name, request.placement.stages())));
  }
}

}  // namespace

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
  if (!request.ties.empty() && !reads_one_version(request)) {
    refuse("/name", fmt::format("{} reads other versions on other stages, and weights that stages share need "
                                "one: use {}, or capture the model with --untie",
                                name,
                                takes_vertical_sync ? "vertical_sync, 2bw or a synchronous schedule"
                                                    : "a synchronous schedule"));
  }
  if (!request.skips.empty() && searched) {
    refuse("/name",
           fmt::format("{} orders by what goes from neighbour to neighbour: it takes no skips; let "
                       "values go from stage to stage (\"skips\": \"relay\"), or use another schedule",
                       name));
  }
  validate_settings(request.recompute, request.placement.stages());
  if (synchronous && request.group_sizes.size() != 1) {
    throw InputError(fmt::format("{} is synchronous: a program is one step with one group, not {}", name,
                                 request.group_sizes.size()));
  }
  if (placement == PlacementKind::straight) return;
  try {
    (void)stagecraft::virtual_stages(request.placement, placement, name);
  } catch (const InputError& error) {
    refuse("/name", error.what());
  }
}

ScheduleProgram Schedule::generate(const ScheduleRequest& request) const {
  check(request);
  ScheduleProgram program = built(*this, request);
  complete(program, request.gradient_from, request.recompute, request.also_load, request.ties);
  add_skips(program, request.skips);
  return program;
}

Placement Schedule::place(int ranks, int stages_per_rank) const {
  const auto refuse = [&](const char* expected) {
    throw InputError(fmt::format("{} stages per rank: {} takes {}", stages_per_rank, name, expected));
  };
  switch (placement) {
    case PlacementKind::straight:
      if (stages_per_rank != 1) refuse("one");
      return Placement::straight(ranks);
    case PlacementKind::loop:
      if (stages_per_rank < 1) refuse("at least one");
      return Placement::looped(ranks, stages_per_rank);
    case PlacementKind::v:
      if (stages_per_rank != 2) refuse("two");
      break;
  }
  return Placement::zigzag(ranks, stages_per_rank);
}

}  // namespace stagecraft
