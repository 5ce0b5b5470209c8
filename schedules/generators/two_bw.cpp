// PipeDream-2BW: two versions of the weights on every stage (Narayanan et al., "Memory-Efficient
// Pipeline-Parallel DNN Training", arXiv 2006.09503, section 3.1). Every micro-batch of a group reads the
// version before the newest there will be when the group ends, on every stage alike: the update of group g is
// applied to version g and was computed with version g - 1, a constant delay of one. That works where a group
// is long enough that the one before the last has been stepped everywhere when it begins.

#include "schedules/generators/asynchronous.h"
#include "schedules/generators/registry.h"

#include <fmt/format.h>

#include <algorithm>

namespace stagecraft {
namespace {

/// Only the last group may be shorter than what is in flight: no other waits for it.
void require_long_groups(const ProgramHeader& header) {
  int lag = 0;
  for (int s = 0; s < header.placement.stages(); ++s) {
    lag = std::max(lag, version_lag(header.placement, StageId{s}));
  }
  for (int g = 0; g + 1 < header.groups(); ++g) {
    const int size = header.group_sizes[to_size(g)];
    if (size >= lag) continue;
    const bool short_one = size < *std::ranges::max_element(header.group_sizes);
    throw InputError(fmt::format(
        "2bw needs at least {} micro-batches per update, as many as are in flight ahead of a "
        "backward, to do with two versions; {} has {}{}",
        lag, short_one ? "an epoch's last, short mini-batch" : "an update", size,
        short_one ? ": leave that one out (data.drop_last), or choose a train_batch_size that divides "
                    "the samples"
                  : ""));
  }
}

ScheduleProgram build_two_bw(const ScheduleRequest& request) {
  ProgramHeader header = training_header("2bw", request);
  require_long_groups(header);
  const auto groups = header.groups_by_micro_batch();
  return asynchronous_program(std::move(header), [&](StageId, MicroBatch micro_batch) {
    return Version{std::max(0, groups[micro_batch.index()].value - 1)};
  });
}

}  // namespace

Schedule two_bw_schedule() {
  return {.name = "2bw",
          .summary = "1F1B without a flush and two versions of the weights: every gradient is one step late",
          .paper = "PipeDream-2BW, arXiv 2006.09503",
          .synchronous = false,
          .one_version = true,
          .clips = false,
          .build = build_two_bw};
}

}  // namespace stagecraft
