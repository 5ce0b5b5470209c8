// MPI for a module that is linked with none: `_mpi.so` beside it is, and is loaded when a launcher of MPI's started the
// process, or doctor asks.

#include "base/error.h"
#include "engine/transport/mpi/mpi_library.h"

#include <fmt/format.h>

#include <dlfcn.h>
#include <filesystem>

namespace stagecraft {
namespace {

const MpiLibrary& load() {
  Dl_info here{};
  ::dladdr(reinterpret_cast<const void*>(&load), &here);  // NOLINT: as dladdr is declared
  const std::string path = (std::filesystem::path(here.dli_fname).parent_path() / "_mpi.so").string();
  void* const loaded = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (loaded == nullptr) {
    throw InputError(
        fmt::format("MPI cannot be loaded: {}. Processes of mpirun and srun need Open MPI's library "
                    "(libmpi.so.40); under "
                    "torchrun, or as one process, no MPI is needed",
                    ::dlerror()));
  }
  // Never closed: MPI does not begin twice in a process.
  using Door = const MpiLibrary* (*)();
  const auto door =
      reinterpret_cast<Door>(::dlsym(loaded, "stagecraft_mpi_library"));  // NOLINT: as POSIX has it
  if (door == nullptr) throw InternalError(path + " has no stagecraft_mpi_library");
  using Said = const char* (*)();
  const auto said =
      reinterpret_cast<Said>(::dlsym(loaded, "stagecraft_mpi_interface"));  // NOLINT: as POSIX has it
  const std::string its = said == nullptr ? "none" : said();
  if (its != STAGECRAFT_MPI_INTERFACE) {
    throw InputError(fmt::format(
        "{} is of another build of stagecraft (interface {}) than {} ({}): install the wheel again, "
        "with pip install --force-reinstall, or build stagecraft_python again",
        path, its, here.dli_fname, STAGECRAFT_MPI_INTERFACE));
  }
  return *door();
}

}  // namespace

const MpiLibrary& mpi_library() {
  static const MpiLibrary& library = load();
  return library;
}

}  // namespace stagecraft
