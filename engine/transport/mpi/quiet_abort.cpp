#include "engine/transport/mpi/quiet_abort.h"

#include <mpi.h>

#include <dlfcn.h>
#include <elf.h>
#include <link.h>

namespace stagecraft::transport {
namespace {

/// What Open MPI calls to print a help text, through a variable that its run-time layers set too.
using ShowHelp = int (*)(const char* file, const char* topic, int header, ...);

int show_nothing(const char* /*file*/, const char* /*topic*/, int /*header*/, ...) { return 0; }

/// The variable; null in an MPI that has none, or has a function of that name.
ShowHelp* show_help() {
  void* const symbol = dlsym(RTLD_DEFAULT, "opal_show_help");
  Dl_info info{};
  void* entry = nullptr;
  if (symbol == nullptr || dladdr1(symbol, &info, &entry, RTLD_DL_SYMENT) == 0 || entry == nullptr)
    return nullptr;
  const unsigned type = ELF64_ST_TYPE(static_cast<const ElfW(Sym)*>(entry)->st_info);
  return type == STT_OBJECT ? static_cast<ShowHelp*>(symbol) : nullptr;
}

}  // namespace

void quiet_abort(int exit_code) noexcept {
  if (ShowHelp* const shown = show_help()) *shown = show_nothing;
  MPI_Abort(MPI_COMM_WORLD, exit_code);
}

}  // namespace stagecraft::transport
