#include "partitioner/search/program_facts.h"

#include "partitioner/plan/ties.h"

#include <algorithm>

namespace stagecraft::planning {

bool ProgramFacts::one_program() const {
  const auto fixed = [&](int layer) { return layer == 0 || layer >= cuttable - 1; };
  return gradient_from == 0 && std::ranges::all_of(ties, [&](const TiedWeight& tie) {
           return std::ranges::all_of(tie.layers, fixed);
         });
}

void ProgramFacts::set(ScheduleRequest& request, const std::vector<int>& cuts) const {
  request.gradient_from = stage_of_layer(cuts, gradient_from);
  request.ties = tie_holders(ties, cuts);
  request.also_load.clear();
  for (std::size_t stage = 1; reads_fields && stage < cuts.size(); ++stage)
    request.also_load.emplace_back(stage);
}

ProgramFacts program_facts(const Profile& profile, const Measurement& measurement, int cuttable) {
  return {.gradient_from = measurement.gradient_from(),
          .cuttable = cuttable,
          .ties = profile.ties,
          .reads_fields = std::ranges::any_of(
              measurement.layers, [](const LayerProfile& layer) { return !layer.fields.empty(); })};
}

}  // namespace stagecraft::planning
