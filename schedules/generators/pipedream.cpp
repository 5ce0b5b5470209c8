// PipeDream: 1F1B without a flush over all groups of the segment (Narayanan et al., "PipeDream: Generalized
// Pipeline Parallelism for DNN Training", SOSP 2019, sections 3.2 and 3.3). Each stage steps on its own as
// soon as the last backward of a group is done; the segment starts and ends drained.
//
// Versions. Let V(b) be the number of groups that end within the first b micro-batches (0 for b <= 0). A
// replica of a stage of width w that runs D forwards ahead has, when it comes to the forward of micro-batch
// i, done its backwards up to micro-batch i - D w, so the newest weights there are version V(i - D w): weight
// stashing reads that. With vertical sync every stage reads what stage 0 read: V(i - D w) with stage 0's D
// and w. Without replication the delay D w is p - 1 - s and p - 1. The backward reads what its forward read.

#include "schedules/generators/assembly.h"

#include <algorithm>
#include <numeric>

namespace stagecraft {
namespace {

/// V: groups that end within the first b micro-batches.
class GroupsEnded {
 public:
  explicit GroupsEnded(const std::vector<int>& group_sizes) : ended_{0} {
    for (const int size : group_sizes) {
      ended_.insert(ended_.end(), static_cast<std::size_t>(size - 1), ended_.back());
      ended_.push_back(ended_.back() + 1);
    }
  }
  [[nodiscard]] int within(int b) const {
    return b <= 0 ? 0 : ended_[std::min(static_cast<std::size_t>(b), ended_.size() - 1)];
  }

 private:
  std::vector<int> ended_;  // by b, 0..m
};

int version_delay(const Placement& placement, StageId stage, bool vertical_sync) {
  const StageId decides = vertical_sync ? StageId{0} : stage;
  return warm_up_depth(placement, decides) * placement.width(decides);
}

ScheduleProgram generate(const ScheduleRequest& request) {
  if (request.clip) {
    throw InputError(
        "pipedream cannot clip by the global norm: its stages step at different times, so there is no moment "
        "at which all gradients of a step exist; use 1f1b or fill_drain, or no gradient_clipping");
  }
  ScheduleProgram program{make_header("pipedream", SegmentKind::train, request), {}};
  const auto groups = program.groups_by_micro_batch();
  const GroupsEnded ended(program.group_sizes);
  auto lists = make_lists(program, groups);
  for (auto& list : lists) {
    const int ahead = std::min(list.count(), warm_up_depth(program.placement, list.stage()));
    const int delay = version_delay(program.placement, list.stage(), request.vertical_sync);
    const auto forward = [&](int k) {
      list.forward(k, Version{ended.within(list.micro_batch(k).value - delay)});
    };
    int stepped = 0;
    // After k own backwards the replica has done its part of every group that ends within its first
    // micro_batch(k) micro-batches: those before the one it comes to next.
    const auto step_complete_groups = [&](int k) {
      const int complete = k == list.count() ? program.groups() : ended.within(list.micro_batch(k).value);
      for (; stepped < complete; ++stepped) list.step(Group{stepped});
    };
    for (int k = 0; k < ahead; ++k) forward(k);
    for (int k = 0; k < list.count(); ++k) {
      step_complete_groups(k);
      if (k + ahead < list.count()) forward(k + ahead);
      list.backward(k);
    }
    step_complete_groups(list.count());
  }
  program.ranks = merge(program, lists);
  return program;
}

int in_flight(const Placement& placement, StageId stage, int micro_batches) {
  return std::min(most_micro_batches(placement, stage, micro_batches), warm_up_depth(placement, stage) + 1);
}

/// When replica r comes to the backward of its micro-batch x its weights are at version V(x), and older ones
/// are alive if a micro-batch from x on reads them: the distinct values below V(x) among V(x - delay),
/// V(x + w - delay), ... These never decrease, so they are a window that only moves on.
int versions(const Placement& placement, StageId stage, const std::vector<int>& group_sizes,
             bool vertical_sync) {
  const GroupsEnded ended(group_sizes);
  const int m = std::accumulate(group_sizes.begin(), group_sizes.end(), 0);
  const int width = placement.width(stage);
  const int delay = version_delay(placement, stage, vertical_sync);
  std::size_t most = 0;
  for (int r = 0; r < std::min(width, m); ++r) {
    std::vector<int> reads;
    std::vector<std::size_t> distinct;  // values among reads[0..k], the same for all k that read one version
    for (int x = r; x < m; x += width) {
      const int read = ended.within(x - delay);
      const bool fresh = reads.empty() || read != reads.back();
      distinct.push_back(reads.empty() ? 0 : distinct.back() + (fresh ? 1 : 0));
      reads.push_back(read);
    }
    std::size_t end = 0;  // first k that reads the current version
    for (std::size_t k = 0; k < reads.size(); ++k) {
      const int current = ended.within(r + static_cast<int>(k) * width);
      while (end < reads.size() && reads[end] < current) ++end;
      if (end > k) most = std::max(most, distinct[end - 1] - distinct[k] + 1);
    }
  }
  return static_cast<int>(most) + 1;
}

}  // namespace

Schedule pipedream_schedule() {
  return {
      .name = "pipedream",
      .summary = "1F1B without a flush: no bubble, weights read up to p - 1 - s steps late (weight stashing)",
      .paper = "PipeDream, SOSP 2019",
      .synchronous = false,
      .generate = generate,
      .in_flight = in_flight,
      .versions = versions};
}

}  // namespace stagecraft
