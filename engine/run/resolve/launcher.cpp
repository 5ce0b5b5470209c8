#include "engine/run/resolve/launcher.h"

#include <fmt/format.h>

#include <algorithm>

namespace stagecraft {

Backend choose_backend(Backend configured, const LaunchInfo& launch) {
  if (configured == Backend::local && launch.world > 1) {
    throw InputError(
        fmt::format("comms.backend is local, where all ranks are threads of one process, but {} processes "
                    "were launched ({}): "
                    "they would be {} copies of the run. Use comms.backend auto, or start one process",
                    launch.world, launch.variable, launch.world));
  }
  if (configured == Backend::mpi && launch.torch) {
    throw InputError(fmt::format(
        "comms.backend is mpi, but torchrun started the processes ({}), and MPI connects none of them: use "
        "comms.backend auto or c10d, or start with mpirun",
        launch.variable));
  }
  if (configured == Backend::c10d && !launch.torch) {
    throw InputError(
        "comms.backend is c10d, where torch.distributed connects the ranks, but torchrun did not start this "
        "process: "
        "use comms.backend auto, or start with torchrun");
  }
  // Who starts NCCL, and carries what is the hosts'.
  if (configured == Backend::nccl) return launch.torch ? Backend::c10d : Backend::mpi;
  if (configured != Backend::automatic) return configured;
  if (launch.torch) return launch.world > 1 ? Backend::c10d : Backend::local;
  return launch.launched() && launch.connectable ? Backend::mpi : Backend::local;
}

std::string under_torchrun(const LaunchInfo& launch, const std::string& command) {
  return fmt::format(
      "{} {} launched ({}), whom torchrun connects for Python alone: start {} as `torchrun "
      "--nproc-per-node {} -m stagecraft {} ...`, or with mpirun",
      launch.world, launch.world == 1 ? "process was" : "processes were", launch.variable,
      launch.world == 1 ? "it" : "them", launch.machine_world, command);
}

void check_world(const LaunchInfo& launch, int connected) {
  if (!launch.launched() || launch.world == connected) return;
  if (launch.torch) {
    throw InputError(
        fmt::format("{} processes were launched ({}), but the process group connects {}: it has to be "
                    "of all of them",
                    launch.world, launch.variable, connected));
  }
  if (connected == 1) {
    throw InputError(fmt::format(
        "{} processes were launched ({}), but MPI connects none of them: each would train a copy "
        "of its own. Start "
        "with the mpirun of the MPI that Stagecraft was built with, or with srun --mpi=pmix (`srun "
        "--mpi=list` shows what Slurm has, `ompi_info` what Open MPI was built for: "
        "Debian's knows no pmi2); to run one process alone inside a batch script, start "
        "it as `env -u {} "
        "stagecraft ...`",
        launch.world, launch.variable, launch.variable.substr(0, launch.variable.find('='))));
  }
  throw InputError(
      fmt::format("{} processes were launched ({}), but MPI connects {}; start them all with one "
                  "launcher",
                  launch.world, launch.variable, connected));
}

std::string how_to_stop(const LaunchInfo& launch, std::optional<Seconds> kill_after) {
  if (launch.variable.starts_with("OMPI_")) {
    return fmt::format(
        "Stopping: `kill -USR1` of mpirun saves first, however long that takes. TERM and Ctrl-C leave {} "
        "until "
        "mpirun kills the ranks (docs/guides/launching.md)\n\n",
        kill_after ? fmt::format("{:.0f} s", kill_after->value) : "little time");
  }
  if (launch.variable.starts_with("SLURM_")) {
    return "Stopping: `scancel --signal=USR1` saves first. scancel alone leaves Slurm's KillWait; TERM to "
           "srun "
           "kills at once (docs/guides/launching.md)\n\n";
  }
  return "";
}

int threads_per_rank(const transport::CoreCounts& cores, int ranks_here, int processes) {
  // A launcher that binds has divided the cores already; one that does not leaves all of them to every
  // process.
  const bool divided = cores.usable * processes <= cores.machine;
  return std::max(1, cores.usable / (divided ? ranks_here : ranks_here * processes));
}

}  // namespace stagecraft
