#pragma once

// How this process was started: alone, or as one of many by mpirun or srun. N processes that each believe to
// be alone would train N copies of a model into one directory; that must be impossible, so what the launcher
// says and what MPI says are compared before anything else.

#include "engine/config/config.h"
#include "engine/transport/cores.h"

#include <functional>
#include <optional>
#include <string>

namespace stagecraft {

/// What the environment says. `variable` is the one that told ("" alone).
struct LaunchInfo {
  int world = 1;
  int rank = 0;
  int machine_world = 1;  ///< ranks on this machine
  int machine_rank = 0;   ///< among them
  std::string variable;   ///< "OMPI_COMM_WORLD_SIZE=4"
  /// False for tasks of an srun that gave them no PMI: MPI cannot connect them, and MPI_Init would abort.
  bool connectable = true;

  [[nodiscard]] bool launched() const { return !variable.empty(); }
};

using Environment = std::function<const char*(const char*)>;

/// Reads OMPI_COMM_WORLD_SIZE (Open MPI), PMI_SIZE (MPICH, Slurm's pmi2) and SLURM_NTASKS with SLURM_PROCID
/// (srun). The largest world wins: they can only disagree where one launcher started another. Throws
/// InputError for a variable that is no number.
[[nodiscard]] LaunchInfo detect_launch(const Environment& environment = {});

/// What ranks are, `local` or `mpi`; nccl is mpi too, and automatic is mpi under a launcher that connects its
/// processes. Throws InputError for local ranks under a launcher of several processes.
[[nodiscard]] Backend choose_backend(Backend configured, const LaunchInfo& launch);

/// Throws InputError when the launcher started several processes and MPI sees one, or another number.
void check_world(const LaunchInfo& launch, int mpi_world);

/// One line for people: how to make a run under this launcher save and stop, and which signals do not leave it
/// enough time. "" without a launcher (docs/guides/launching.md). `kill_after`: mpirun's own timeout
/// (transport::kill_timeout), where it is known.
[[nodiscard]] std::string how_to_stop(const LaunchInfo& launch, std::optional<Seconds> kill_after);

/// Threads of LibTorch's operators per rank: the cores over the ranks that share them, at least 1.
/// `ranks_here` in this process, `processes` of the run on this machine.
[[nodiscard]] int threads_per_rank(const transport::CoreCounts& cores, int ranks_here, int processes);

}  // namespace stagecraft
