#pragma once

// What ranks are, as the process was started (base/launch.h). N processes that each believe to be alone would train N
// copies of a model into one directory; that must be impossible, so what the launcher says and what MPI says
// are compared before anything else.

#include "base/launch.h"
#include "engine/config/config.h"
#include "engine/transport/cores.h"

#include <optional>
#include <string>

namespace stagecraft {

/// What ranks are: `local`, `mpi` or `c10d`. automatic is mpi under a launcher of MPI's that connects its processes,
/// and c10d under torchrun; nccl is one of the two. Throws InputError for local ranks under a launcher of
/// several processes, and for mpi or c10d under the launcher of the other.
[[nodiscard]] Backend choose_backend(Backend configured, const LaunchInfo& launch);

/// How `command` is started instead where something sets torchrun's variables but names no store.
[[nodiscard]] std::string under_torchrun(const LaunchInfo& launch, const std::string& command);

/// Throws InputError when the launcher started several processes and MPI, or torch.distributed's group, sees one or
/// another number.
void check_world(const LaunchInfo& launch, int connected);

/// One line for people: how to make a run under this launcher save and stop, and which signals do not leave it
/// enough time. "" without a launcher (docs/guides/launching.md). `kill_after`: mpirun's own timeout
/// (MpiLibrary::kill_timeout), where it is known.
[[nodiscard]] std::string how_to_stop(const LaunchInfo& launch, std::optional<Seconds> kill_after);

/// Threads of LibTorch's operators per rank: the cores over the ranks that share them, at least 1.
/// `ranks_here` in this process, `processes` of the run on this machine.
[[nodiscard]] int threads_per_rank(const transport::CoreCounts& cores, int ranks_here, int processes);

}  // namespace stagecraft
