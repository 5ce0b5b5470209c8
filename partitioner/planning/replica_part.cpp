#include "stagecraft/partitioner/planning/replica_part.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <tuple>

namespace stagecraft::planning {
namespace {

/// A boundary as large as they are; which pipeline stands for all is a question of closeness only.
constexpr Bytes kBoundary{std::int64_t{16} << 20U};

/// Where generators put reductions: behind all computing, before the norm's agreement and the steps.
void insert_reductions(ScheduleProgram& program, const Placement& whole) {
  for (std::size_t r = 0; r < program.ranks.size(); ++r) {
    std::vector<Action> reductions;
    for (const StageId stage : program.placement.stages_of(Rank{r})) {
      if (whole.replicas(stage) > 1)
        reductions.push_back({.op = Op::reduce, .stage = stage, .group = Group{0}});
    }
    auto& list = program.ranks[r];
    const auto flush = std::find_if(list.begin(), list.end(), [](const Action& action) {
      return action.op == Op::agree_norm || action.op == Op::step;
    });
    list.insert(flush, reductions.begin(), reductions.end());
  }
}

}  // namespace

ReplicaPart replica_part(const Schedule& schedule, const ScheduleRequest& request, const Network& network,
                         const std::vector<double>& speed) {
  const Placement& whole = request.placement;
  const auto replicas = to_size(whole.replicas(StageId{0}));
  const int micro_batches = request.group_sizes.front();
  // Ranks in the order in which stages first name them.
  ScheduleRequest one = request;
  one.group_sizes = {own_count(micro_batches, 0, whole.replicas(StageId{0}))};
  std::vector<Rank> known;
  for (std::size_t s = 0; s < whole.ranks.size(); ++s) {
    const Rank rank = whole.ranks[s].front();
    auto found = std::ranges::find(known, rank);
    if (found == known.end()) found = known.insert(found, rank);
    one.placement.ranks[s] = {Rank{static_cast<int>(found - known.begin())}};
  }
  ReplicaPart made{schedule.generate(one), {whole, {}}};
  insert_reductions(made.program, whole);
  const std::size_t rest = to_size(micro_batches) % replicas;
  std::tuple<double, double> slowest{-1, -1};
  for (std::size_t k = 0; k < (rest == 0 ? replicas : rest); ++k) {
    double slow = 0;
    double links = 0;
    for (std::size_t s = 0; s < whole.ranks.size(); ++s) {
      const Rank rank = whole.ranks[s][k];
      slow += speed.empty() ? 0 : 1 / speed[rank.index()];
      if (s == 0 || whole.ranks[s - 1][k] == rank) continue;
      links += network.between(whole.ranks[s - 1][k], rank).time(kBoundary).value;
    }
    if (std::tuple(slow, links) <= slowest) continue;
    slowest = {slow, links};
    made.part.ranks.resize(known.size());
    for (std::size_t s = 0; s < whole.ranks.size(); ++s) {
      made.part.ranks[one.placement.ranks[s].front().index()] = whole.ranks[s][k];
    }
  }
  return made;
}

bool has_equal_pipelines(const Placement& placement) {
  const std::size_t replicas = placement.ranks.front().size();
  return replicas > 1 &&
         std::ranges::all_of(placement.ranks, [&](const auto& ranks) { return ranks.size() == replicas; });
}

void as_whole(CriticalPath& path, const PartOf& part) {
  const auto whole = [&](Rank& rank) { rank = part.ranks[rank.index()]; };
  for (CriticalPath::Computing& computing : path.computing) whole(computing.rank);
  std::erase_if(path.moving, [&](CriticalPath::Moving& moving) {
    whole(moving.sender);
    whole(moving.receiver);
    return moving.payload == Payload::loss;  // takes no time in a part
  });
}

LoweredProgram without_reductions(LoweredProgram program) {
  for (auto& list : program.ranks) {
    std::erase_if(list, [](const Action& action) { return action.op == Op::reduce; });
  }
  return program;
}

}  // namespace stagecraft::planning
