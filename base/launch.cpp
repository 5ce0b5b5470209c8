#include "base/launch.h"

#include "base/error.h"

#include <fmt/format.h>

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
  enum class Kind { mpi, slurm, torch };
  Kind kind;
  const char* size;
  const char* rank;
  const char* machine_size;
  const char* machine_rank;
};

constexpr Source kSources[] = {
    {Source::Kind::mpi, "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK"},
    {Source::Kind::mpi, "PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS", "MPI_LOCALRANKID"},
    {Source::Kind::slurm, "SLURM_NTASKS", "SLURM_PROCID", "SLURM_NTASKS_PER_NODE", "SLURM_LOCALID"},
    {Source::Kind::torch, "WORLD_SIZE", "RANK", "LOCAL_WORLD_SIZE", "LOCAL_RANK"},
};

Environment or_this_process(const Environment& given) {
  return given ? given : [](const char* name) -> const char* { return std::getenv(name); };
}

}  // namespace

bool asked_by_a_program(const Environment& given) {
  const char* const value = or_this_process(given)("STAGECRAFT_ALONE");
  return value != nullptr && *value != '\0';
}

LaunchInfo detect_launch(const Environment& given) {
  const Environment environment = or_this_process(given);
  LaunchInfo launch;
  if (asked_by_a_program(environment)) return launch;
  for (const Source& source : kSources) {
    const int world = number(environment, source.size, 0);
    // A batch script of Slurm has SLURM_NTASKS before anything was launched; srun adds the task's number. And
    // anybody may have called something WORLD_SIZE.
    const bool numbered = source.kind == Source::Kind::mpi || environment(source.rank) != nullptr;
    if (world == 0 || !numbered) continue;
    if (launch.launched() && world <= launch.world) continue;
    launch.world = world;
    launch.rank = number(environment, source.rank, 0);
    launch.machine_world = number(environment, source.machine_size, world);
    launch.machine_rank = number(environment, source.machine_rank, launch.rank);
    launch.variable = fmt::format("{}={}", source.size, world);
    launch.torch = source.kind == Source::Kind::torch;
    launch.connectable = source.kind == Source::Kind::mpi ||
                         (source.kind == Source::Kind::slurm && environment("PMIX_RANK") != nullptr);
  }
  return launch;
}

void require_alone(const LaunchInfo& launch, const std::string& what) {
  if (launch.world == 1) return;
  if (launch.rank != 0) throw InputError("");
  throw InputError(
      fmt::format("{} is the work of one process, but {} were launched ({}): start it without the launcher",
                  what, launch.world, launch.variable));
}

}  // namespace stagecraft
