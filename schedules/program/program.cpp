#include "schedules/program/program.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace stagecraft {

bool ProgramHeader::loads(StageId stage) const {
  return stage.value == 0 || stage.value + 1 == placement.stages() ||
         std::binary_search(also_load.begin(), also_load.end(), stage);
}

bool ProgramHeader::holds(StageId stage, TieId tie) const {
  const std::vector<StageId>& holders = ties[tie.index()];
  return std::binary_search(holders.begin(), holders.end(), stage);
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

std::string LoweredProgram::name(ActionPlace place) const {
  return fmt::format("rank {} [{}] {}", place.rank.value, place.at, describe_action(action(place)));
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

  const std::vector<StageId>& also = header.also_load;
  for (std::size_t i = 0; i < also.size(); ++i) {
    if (also[i].value <= 0 || also[i].value + 1 >= placement.stages()) {
      refuse(fmt::format("expected stages between the first and the last, which load anyway, found {}",
                         also[i].value));
    }
    if (i > 0 && also[i] <= also[i - 1]) refuse("stages that load are listed once and in their order");
  }

  for (std::size_t k = 0; k < header.ties.size(); ++k) {
    const std::vector<StageId>& holders = header.ties[k];
    if (holders.size() < 2)
      refuse(fmt::format("tied weight {}: expected the stages of at least two layers", k));
    for (std::size_t i = 0; i < holders.size(); ++i) {
      if (holders[i].value < 0 || holders[i].value >= placement.stages()) {
        refuse(fmt::format("tied weight {}: stage {} is none of the {} stages", k, holders[i].value,
                           placement.stages()));
      }
      if (i > 0 && holders[i] < holders[i - 1]) {
        refuse(fmt::format("tied weight {}: expected its stages in their order", k));
      }
    }
  }

  for (std::size_t i = 0; i < header.skips.size(); ++i) {
    const auto& [from, to] = header.skips[i];
    if (from.value < 0 || to.value >= placement.stages() || to.value <= from.value + 1) {
      refuse(fmt::format("a skip goes from a stage to one behind its next, of {} stages; found {} to {}",
                         placement.stages(), from.value, to.value));
    }
    if (i > 0 && header.skips[i] <= header.skips[i - 1]) refuse("skips are listed once and in their order");
  }

  const StageId from = header.gradient_from;
  if (from.value < 0 || from.value >= placement.stages()) {
    refuse(fmt::format("gradients begin at stage {}: expected one of the {} stages", from.value,
                       placement.stages()));
  }
  if (from.value > 0 && header.kind == SegmentKind::validate) {
    refuse("a validation program has no gradients: expected no stage from which they begin");
  }
  for (std::size_t k = 0; k < header.ties.size(); ++k) {
    if (header.ties[k].front() >= from) continue;
    refuse(fmt::format("tied weight {}: stage {} holds it, and gradients begin at stage {}", k,
                       header.ties[k].front().value, from.value));
  }

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
