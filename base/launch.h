#pragma once

// How this process was started: alone, or as one of many by mpirun, srun or torchrun. N processes that each believe to
// be alone do the same work N times, into one directory; that must be impossible.

#include <functional>
#include <string>

namespace stagecraft {

/// What the environment says. `variable` is the one that told ("" alone).
struct LaunchInfo {
  int world = 1;
  int rank = 0;
  int machine_world = 1;  ///< ranks on this machine
  int machine_rank = 0;   ///< among them
  std::string variable;   ///< "OMPI_COMM_WORLD_SIZE=4"
  /// Whether MPI connects the processes. False for tasks of an srun that gave them no PMI, where MPI_Init would abort,
  /// and for those of torchrun.
  bool connectable = true;
  /// Started by torchrun, or by what sets its variables: torch.distributed connects the processes.
  bool torch = false;

  [[nodiscard]] bool launched() const { return !variable.empty(); }
};

using Environment = std::function<const char*(const char*)>;

/// Whether STAGECRAFT_ALONE is set: one of Stagecraft's own packages started this process and waits for its answer. Then
/// what a launcher left in the environment is about the process that asked.
[[nodiscard]] bool asked_by_a_program(const Environment& environment = {});

/// Reads OMPI_COMM_WORLD_SIZE (Open MPI), PMI_SIZE (MPICH, Slurm's pmi2), SLURM_NTASKS with SLURM_PROCID (srun), and
/// WORLD_SIZE with RANK (torchrun). The largest world wins: they can only disagree where one launcher started
/// another. One process where a program asked. Throws InputError for a variable that is no number.
[[nodiscard]] LaunchInfo detect_launch(const Environment& environment = {});

/// Throws InputError where this is one of several processes, for work that one does. `what` begins the sentence: "`plan`".
/// Only rank 0's error has a text.
void require_alone(const LaunchInfo& launch, const std::string& what);

}  // namespace stagecraft
