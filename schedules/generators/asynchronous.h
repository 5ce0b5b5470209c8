#pragma once

// What the asynchronous schedules share: 1F1B without a flush over all groups of the segment (Narayanan et
// al., "PipeDream: Generalized Pipeline Parallelism for DNN Training", SOSP 2019, section 3.2). Each stage
// steps on its own as soon as its last backward of a group is done; the segment starts and ends drained. They
// differ in which version a forward reads.

#include "schedules/generators/assembly.h"

#include <functional>

namespace stagecraft {

/// V(b): the groups that end within the first b micro-batches, which is the group of the next one; 0 for
/// b <= 0. `groups` are ProgramHeader::groups_by_micro_batch.
[[nodiscard]] int groups_ended(const std::vector<Group>& groups, int b);

/// How many micro-batches the newest weights lag behind on `stage`: a replica of a stage with w of them that runs
/// D forwards ahead has, when it comes to the forward of micro-batch i, done its backwards up to micro-batch
/// i - D w, so the newest weights there are version V(i - D w). Without replication D w is p - 1 - s.
[[nodiscard]] int version_lag(const Placement& placement, StageId stage);

/// `version_of` says which version the forward of a micro-batch on a stage reads; the backward reads the
/// same. It must not exceed the newest.
[[nodiscard]] ScheduleProgram asynchronous_program(
    ProgramHeader header, const std::function<Version(StageId, MicroBatch)>& version_of);

}  // namespace stagecraft
