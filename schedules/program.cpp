#include "schedules/program.h"

#include "schedules/base/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

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

Placement Placement::straight(int stages) {
  Placement placement;
  for (int s = 0; s < stages; ++s) placement.ranks.push_back({Rank{s}});
  return placement;
}

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

int ProgramHeader::micro_batches() const {
  return std::accumulate(group_sizes.begin(), group_sizes.end(), 0);
}

Group ProgramHeader::group_of(MicroBatch micro_batch) const {
  std::int64_t end = 0;
  for (std::size_t g = 0; g < group_sizes.size(); ++g) {
    end += group_sizes[g];
    if (micro_batch.valid() && micro_batch.value < end) return Group{g};
  }
  return Group{};
}

MicroBatch ProgramHeader::first_of(Group group) const {
  return MicroBatch{std::accumulate(group_sizes.begin(), group_sizes.begin() + group.value, 0)};
}

std::vector<Group> ProgramHeader::groups_by_micro_batch() const {
  std::vector<Group> groups;
  groups.reserve(static_cast<std::size_t>(micro_batches()));
  for (std::size_t g = 0; g < group_sizes.size(); ++g) {
    groups.insert(groups.end(), static_cast<std::size_t>(group_sizes[g]), Group{g});
  }
  return groups;
}

void validate_header(const ProgramHeader& header, const InputPlace& place) {
  const auto refuse = [&](const std::string& what) { throw InputError(place, what); };
  const Placement& placement = header.placement;
  if (placement.ranks.empty()) refuse("a program needs at least one stage");
  std::size_t places = 0;
  for (const auto& replicas : placement.ranks) places += replicas.size();
  for (std::size_t s = 0; s < placement.ranks.size(); ++s) {
    auto sorted = placement.ranks[s];
    if (sorted.empty()) refuse(fmt::format("stage {} has no rank", s));
    std::sort(sorted.begin(), sorted.end());
    if (!sorted.front().valid()) refuse(fmt::format("stage {}: expected ranks from 0 on", s));
    if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) {
      refuse(fmt::format("stage {} has the same rank twice", s));
    }
    // Checked before anything is sized by the world: ranks without gaps cannot exceed the places there are.
    if (sorted.back().index() >= places) {
      refuse(fmt::format("stage {} is on rank {}, but {} places leave a rank below it without a stage", s,
                         sorted.back().value, places));
    }
  }
  std::vector<bool> used(static_cast<std::size_t>(placement.world()), false);
  for (const auto& replicas : placement.ranks) {
    for (const Rank rank : replicas) used[rank.index()] = true;
  }
  const auto unused = std::find(used.begin(), used.end(), false);
  if (unused != used.end()) refuse(fmt::format("rank {} holds no stage", unused - used.begin()));

  if (header.group_sizes.empty()) refuse("a program needs at least one group of micro-batches");
  std::int64_t total = 0;
  for (const int size : header.group_sizes) {
    if (size < 1) refuse(fmt::format("expected at least 1 micro-batch in each group, found {}", size));
    total += size;
    if (total > kMaxMicroBatches) {
      refuse(fmt::format("expected at most {} micro-batches in a segment", kMaxMicroBatches));
    }
  }
  if (header.kind == SegmentKind::validate && header.group_sizes.size() != 1) {
    refuse(fmt::format("a validation program has one group, found {}", header.group_sizes.size()));
  }
}

}  // namespace stagecraft
