#include "engine/run/resolve/launcher.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>

namespace stagecraft {
namespace {

/// The variable's number, or `absent` where it is not set.
int number(const Environment& environment, const char* name, int absent) {
  const char* text = environment(name);
  if (text == nullptr || *text == '\0') return absent;
  int value = 0;
  const char* end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, value);
  if (error != std::errc() || stop != end || value < 0) {
    throw InputError({"environment variable " + std::string(name), ""},
                     fmt::format("expected a number, found \"{}\"", text));
  }
  return value;
}

struct Source {
  const char* size;
  const char* rank;
  const char* machine_size;
  const char* machine_rank;
};

constexpr Source kSources[] = {
    {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK"},
    {"PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS", "MPI_LOCALRANKID"},
    {"SLURM_NTASKS", "SLURM_PROCID", "SLURM_NTASKS_PER_NODE", "SLURM_LOCALID"},
};

}  // namespace

LaunchInfo detect_launch(const Environment& given) {
  const Environment environment =
      given ? given : [](const char* name) -> const char* { return std::getenv(name); };
  LaunchInfo launch;
  for (const Source& source : kSources) {
    const int world = number(environment, source.size, 0);
    // A batch script of Slurm has SLURM_NTASKS before anything was launched; srun adds the task's number.
    const bool is_slurm = std::strcmp(source.rank, "SLURM_PROCID") == 0;
    if (world == 0 || (is_slurm && environment(source.rank) == nullptr)) continue;
    if (launch.launched() && world <= launch.world) continue;
    launch.world = world;
    launch.rank = number(environment, source.rank, 0);
    launch.machine_world = number(environment, source.machine_size, world);
    launch.machine_rank = number(environment, source.machine_rank, launch.rank);
    launch.variable = fmt::format("{}={}", source.size, world);
    launch.connectable = !is_slurm || environment("PMIX_RANK") != nullptr;
  }
  return launch;
}

Backend choose_backend(Backend configured, const LaunchInfo& launch) {
  if (configured == Backend::local && launch.world > 1) {
    throw InputError(
        fmt::format("comms.backend is local, where all ranks are threads of one process, but {} processes "
                    "were launched ({}): "
                    "they would be {} copies of the run. Use comms.backend mpi or auto, or start one process",
                    launch.world, launch.variable, launch.world));
  }
  if (configured == Backend::nccl) return Backend::mpi;  // which starts it, and carries what is the hosts'
  if (configured != Backend::automatic) return configured;
  return launch.launched() && launch.connectable ? Backend::mpi : Backend::local;
}

void check_world(const LaunchInfo& launch, int mpi_world) {
  if (!launch.launched() || launch.world == mpi_world) return;
  if (mpi_world == 1) {
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
                  launch.world, launch.variable, mpi_world));
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
