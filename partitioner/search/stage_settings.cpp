#include "partitioner/search/stage_settings.h"

#include "base/error.h"

#include <algorithm>
#include <utility>

namespace stagecraft::planning {

std::vector<Recompute> allowed_settings(std::optional<Recompute> asked) {
  if (asked) return {*asked};
  return {Recompute::none, Recompute::all_but_last, Recompute::all};
}

StageSettings::StageSettings(Placement placement, int layers, std::vector<Recompute> allowed,
                             Possible possible, bool alone)
    : layers_(layers),
      allowed_(std::move(allowed)),
      possible_(std::move(possible)),
      alone_(alone),
      held_(placement.stages_by_rank()) {
  STAGECRAFT_CHECK(!allowed_.empty(), "some setting is allowed");
}

std::size_t StageSettings::place_of(Recompute setting) const {
  return to_size(std::find(allowed_.begin(), allowed_.end(), setting) - allowed_.begin());
}

std::uint64_t StageSettings::key(StageId stage, int first, int last) const {
  const auto layers = static_cast<std::uint64_t>(layers_) + 1;
  return (stage.index() * layers + static_cast<std::uint64_t>(first)) * layers +
         static_cast<std::uint64_t>(last);
}

std::optional<Recompute> StageSettings::least(StageId stage, int first, int last) const {
  std::size_t place = 0;
  if (!next_of_.empty()) {
    const auto refused = next_of_.find(key(stage, first, last));
    if (refused != next_of_.end()) place = refused->second;
  }
  for (; place < allowed_.size(); ++place) {
    if (!possible_ || possible_(allowed_[place], stage, first, last)) return allowed_[place];
  }
  return std::nullopt;
}

std::optional<RecomputeSettings> StageSettings::least(const std::vector<int>& cuts) const {
  RecomputeSettings settings;
  for (std::size_t s = 0; s <= cuts.size(); ++s) {
    const StageId stage{s};
    const auto setting = least(stage, first_of(cuts, stage), last_of(cuts, stage));
    if (!setting) return std::nullopt;
    settings.push_back(*setting);
  }
  if (allowed_.size() == 1) return settings;
  for (const std::vector<StageId>& stages : held_) {
    std::size_t most = 0;
    for (const StageId stage : stages) most = std::max(most, place_of(settings[stage.index()]));
    for (const StageId stage : stages) settings[stage.index()] = allowed_[most];
  }
  return settings;
}

std::optional<RecomputeSettings> StageSettings::after_refusal(const std::vector<int>& cuts,
                                                              const RecomputeSettings& refused,
                                                              const std::vector<Rank>& over) {
  RecomputeSettings settings = refused;
  bool all_go_on = true;
  for (const Rank rank : over) {
    const std::vector<StageId>& stages = held_[rank.index()];
    const std::size_t next = place_of(refused[stages.front().index()]) + 1;
    if (stages.size() == 1 && alone_) {
      const StageId stage = stages.front();
      std::size_t& known = next_of_[key(stage, first_of(cuts, stage), last_of(cuts, stage))];
      known = std::max(known, next);
    }
    if (next == allowed_.size()) {
      all_go_on = false;
      continue;  // the others' refusals are worth knowing
    }
    for (const StageId stage : stages) settings[stage.index()] = allowed_[next];
  }
  if (!all_go_on || over.empty()) return std::nullopt;
  return settings;
}

}  // namespace stagecraft::planning
