#include "partitioner/plan/one_pipeline.h"

#include <fmt/format.h>

#include <algorithm>

namespace stagecraft {

Plan one_pipeline(Plan plan, const InputPlace& place) {
  const std::size_t replicas = plan.stages.front().ranks.size();
  std::vector<std::vector<Rank>> groups;
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    std::vector<Rank>& ranks = plan.stages[s].ranks;
    if (ranks.size() != replicas) {
      throw InputError(
          {place.file, fmt::format("/stages/{}/ranks", s)},
          fmt::format(
              "has {}, and stage 0 has {}: other frameworks replicate whole pipelines, so each stage must "
              "have as many; `stagecraft plan --no-replicate` plans one pipeline",
              ranks.size(), replicas));
    }
    const auto found = std::find(groups.begin(), groups.end(), ranks);
    const Rank rank{static_cast<std::size_t>(found - groups.begin())};
    if (found == groups.end()) groups.push_back(ranks);
    ranks = {rank};
  }
  return plan;
}

}  // namespace stagecraft
