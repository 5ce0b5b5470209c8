#include "schedules/program/recompute.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace stagecraft {

void validate_settings(const RecomputeSettings& settings, int stages, const InputPlace& place) {
  if (settings.empty() || static_cast<int>(settings.size()) == stages) return;
  throw InputError(place, fmt::format("recompute settings of {} stages for {}; give every stage one, or none",
                                      settings.size(), stages));
}

bool any_recompute(const RecomputeSettings& settings) {
  return std::ranges::count(settings, Recompute::none) < std::ssize(settings);
}

Recompute setting_of(const RecomputeSettings& settings, StageId stage) {
  return settings.empty() ? Recompute::none : settings[stage.index()];
}

std::vector<int> group_ends(const std::vector<int>& group_sizes) {
  std::vector<int> ends(group_sizes.size());
  std::partial_sum(group_sizes.begin(), group_sizes.end(), ends.begin());
  return ends;
}

double recomputed_share(Recompute setting, int replicas, int micro_batches) {
  if (setting == Recompute::none) return 0;
  if (setting == Recompute::all) return 1;
  return 1 - static_cast<double>(std::min(replicas, micro_batches)) / micro_batches;
}

std::string recompute_words(const RecomputeSettings& settings) {
  const auto count = [&](Recompute setting) { return std::count(settings.begin(), settings.end(), setting); };
  const auto all = static_cast<std::ptrdiff_t>(settings.size());
  if (count(Recompute::none) == all) return "";
  if (count(Recompute::all) == all) return " with recomputation";
  if (count(Recompute::all_but_last) == all) return " with recomputation but of a step's last micro-batch";
  return " with recomputation on some stages";
}

void insert_recomputes(ScheduleProgram& program, const RecomputeSettings& settings) {
  validate_settings(settings, program.placement.stages());
  if (!any_recompute(settings)) return;
  if (program.kind == SegmentKind::validate) {
    throw InputError("recompute: a validation pass keeps nothing, so there is nothing to recompute");
  }
  const std::vector<int> ends = group_ends(program.group_sizes);
  for (auto& list : program.ranks) {
    std::vector<Action> with;
    with.reserve(list.size() + list.size() / 2);
    for (const Action& action : list) {
      if (is_input_part(action.op)) {
        Action again = action;
        again.op = Op::recompute;
        const bool there = !with.empty() && with.back() == again;
        if (!there && recomputes(settings[action.stage.index()], action.micro_batch,
                                 program.placement.replicas(action.stage), ends[action.group.index()])) {
          with.push_back(again);
        }
      }
      with.push_back(action);
    }
    list = std::move(with);
  }
}

}  // namespace stagecraft
