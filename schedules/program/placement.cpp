#include "schedules/program/placement.h"

#include "base/error.h"

#include <fmt/format.h>

#include <algorithm>

namespace stagecraft {

int Placement::world() const {
  int highest = -1;
  for (const auto& replicas : ranks) {
    for (const Rank rank : replicas) highest = std::max(highest, rank.value);
  }
  return highest + 1;
}

bool Placement::replicated() const {
  return std::any_of(ranks.begin(), ranks.end(), [](const auto& replicas) { return replicas.size() > 1; });
}

Rank Placement::rank_of(StageId stage, MicroBatch micro_batch) const {
  const auto& replicas = ranks[stage.index()];
  // Asked of every action, and most often there is nothing to divide.
  return replicas.size() == 1 ? replicas[0] : replicas[micro_batch.index() % replicas.size()];
}

std::vector<StageId> Placement::stages_of(Rank rank) const {
  std::vector<StageId> held;
  for (std::size_t s = 0; s < ranks.size(); ++s) {
    if (std::find(ranks[s].begin(), ranks[s].end(), rank) != ranks[s].end()) held.emplace_back(s);
  }
  return held;
}

std::vector<std::vector<StageId>> Placement::stages_by_rank() const {
  std::vector<std::vector<StageId>> held(static_cast<std::size_t>(world()));
  for (std::size_t s = 0; s < ranks.size(); ++s) {
    for (const Rank rank : ranks[s]) held[rank.index()].emplace_back(s);
  }
  return held;
}

Placement Placement::straight(int stages) { return looped(stages, 1); }

Placement Placement::looped(int ranks, int virtual_stages) {
  Placement placement;
  for (int s = 0; s < ranks * virtual_stages; ++s) placement.ranks.push_back({Rank{s % ranks}});
  return placement;
}

Placement Placement::zigzag(int ranks, int virtual_stages) {
  Placement placement;
  for (int s = 0; s < ranks * virtual_stages; ++s) {
    const int along = s % ranks;
    placement.ranks.push_back({Rank{s / ranks % 2 == 0 ? along : ranks - 1 - along}});
  }
  return placement;
}

std::vector<StageReplica> stage_replicas(const Placement& placement, int micro_batches) {
  std::vector<StageReplica> all;
  for (int s = 0; s < placement.stages(); ++s) {
    const int replicas = placement.replicas(StageId{s});
    for (const Rank rank : placement.ranks[static_cast<std::size_t>(s)]) {
      const int replica = all.empty() || all.back().stage.value != s ? 0 : all.back().replica + 1;
      all.push_back({StageId{s}, rank, replica, replicas, own_count(micro_batches, replica, replicas)});
    }
  }
  return all;
}

VirtualStages virtual_stages(const Placement& placement, PlacementKind kind, const std::string& schedule) {
  VirtualStages shape{.kind = kind};
  const auto& ranks = placement.ranks;
  // The first pass ends where a rank comes again: in a loop the first, in a V the last.
  const auto begins_next_pass = [&](int s) {
    return ranks[static_cast<std::size_t>(s)] ==
           ranks[kind == PlacementKind::v ? static_cast<std::size_t>(s - 1) : 0];
  };
  shape.ranks = 1;
  while (shape.ranks < placement.stages() && !begins_next_pass(shape.ranks)) ++shape.ranks;
  shape.virtual_stages = std::max(1, placement.stages() / shape.ranks);
  shape.replicas = ranks.empty() ? 1 : placement.replicas(StageId{0});
  if (kind == PlacementKind::v && placement.stages() != 2 * shape.ranks) {
    throw InputError(fmt::format(
        "{} wants two stages on every rank, in a V: down the ranks and back up. Of these {} stages "
        "the first pass goes over {} ranks",
        schedule, placement.stages(), shape.ranks));
  }
  const Placement pattern = kind == PlacementKind::v ? Placement::zigzag(shape.ranks, shape.virtual_stages)
                                                     : Placement::looped(shape.ranks, shape.virtual_stages);
  for (int s = 0; s < placement.stages(); ++s) {
    const auto at = static_cast<std::size_t>(s);
    if (s < pattern.stages() && ranks[at] == ranks[pattern.ranks[at].front().index()] &&
        placement.replicas(StageId{s}) == shape.replicas) {
      continue;
    }
    throw InputError(
        fmt::format("{} wants its stages in a {}, equally wide, each pass over all ranks: stage {} is out of "
                    "place",
                    schedule, kind == PlacementKind::v ? "V" : "loop", s));
  }
  return shape;
}

bool has_equal_pipelines(const Placement& placement) {
  const std::size_t replicas = placement.ranks.front().size();
  if (replicas < 2) return false;
  std::vector<std::size_t> replica_of(to_size(placement.world()), replicas);
  for (const auto& ranks : placement.ranks) {
    if (ranks.size() != replicas) return false;
    for (std::size_t k = 0; k < replicas; ++k) {
      std::size_t& known = replica_of[ranks[k].index()];
      if (known != replicas && known != k) return false;
      known = k;
    }
  }
  return true;
}

Pipeline pipeline_of(const Placement& whole, int replica) {
  Pipeline one;
  for (const auto& replicas : whole.ranks) {
    const Rank rank = replicas[to_size(replica)];
    auto found = std::ranges::find(one.ranks, rank);
    if (found == one.ranks.end()) found = one.ranks.insert(found, rank);
    one.placement.ranks.push_back({Rank{static_cast<int>(found - one.ranks.begin())}});
  }
  return one;
}

Rank sender_of(const Placement& placement, const Tag& tag) {
  if (!tag.is_loss()) return placement.rank_of(tag.from, tag.micro_batch());
  return placement.ranks[tag.from.index()][static_cast<std::size_t>(tag.replica())];
}

Rank receiver_of(const Placement& placement, const Tag& tag) {
  return tag.is_loss() ? placement.ranks[0][0] : placement.rank_of(tag.to, tag.micro_batch());
}

}  // namespace stagecraft
