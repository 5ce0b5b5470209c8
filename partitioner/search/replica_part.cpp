#include "partitioner/search/replica_part.h"

#include "schedules/generators/assembly.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <tuple>

namespace stagecraft::planning {
namespace {

/// A boundary as large as they are; which pipeline stands for all is a question of closeness only.
constexpr Bytes kBoundary{std::int64_t{16} << 20U};

/// Where generators put reductions: behind all computing, before tied weights, the norm's agreement and the steps.
void insert_reductions(ScheduleProgram& program, const Placement& whole) {
  for (std::size_t r = 0; r < program.ranks.size(); ++r) {
    std::vector<Action> reductions;
    for (const StageId stage : program.placement.stages_of(Rank{r})) {
      if (whole.replicas(stage) > 1)
        reductions.push_back({.op = Op::reduce, .stage = stage, .group = Group{0}});
    }
    auto& list = program.ranks[r];
    const auto flush = std::find_if(list.begin(), list.end(), [](const Action& action) {
      return action.op == Op::tie || action.op == Op::agree_norm || action.op == Op::step;
    });
    list.insert(flush, reductions.begin(), reductions.end());
  }
}

/// Of the pipelines with most micro-batches.
int slowest_pipeline(const Placement& whole, int micro_batches, const Network& network,
                     const std::vector<double>& speed) {
  const int replicas = whole.replicas(StageId{0});
  const int rest = micro_batches % replicas;
  int slowest = 0;
  std::tuple<double, double> most{-1, -1};
  for (int k = 0; k < (rest == 0 ? replicas : rest); ++k) {
    double slow = 0;
    double links = 0;
    for (std::size_t s = 0; s < whole.ranks.size(); ++s) {
      const Rank rank = whole.ranks[s][to_size(k)];
      slow += speed.empty() ? 0 : 1 / speed[rank.index()];
      if (s == 0 || whole.ranks[s - 1][to_size(k)] == rank) continue;
      links += network.between(whole.ranks[s - 1][to_size(k)], rank).time(kBoundary).value;
    }
    if (std::tuple(slow, links) <= most) continue;
    most = {slow, links};
    slowest = k;
  }
  return slowest;
}

}  // namespace

ReplicaPart replica_part(const Schedule& schedule, const ScheduleRequest& request, const Network& network,
                         const std::vector<double>& speed) {
  const Placement& whole = request.placement;
  const int slowest = slowest_pipeline(whole, request.group_sizes.front(), network, speed);
  ReplicaPart made{schedule.generate(pipeline_request(request, slowest)),
                   {whole, pipeline_of(whole, slowest).ranks}};
  insert_reductions(made.program, whole);
  return made;
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
