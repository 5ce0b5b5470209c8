#include "models/tensors/known_processor.h"

#include "base/error.h"

#include <cerrno>
#include <dlfcn.h>
#include <unistd.h>

namespace stagecraft {
namespace {

/// Of the cpuinfo in LibTorch, wherever a version of it has that: it asks once, and remembers how that ended.
using Initialize = bool (*)();

bool can_be_read(const char* path) { return ::access(path, R_OK) == 0; }

}  // namespace

void require_known_processor() {
#if defined(__x86_64__) || defined(__aarch64__)  // others it may not know at all
  const auto initialize = reinterpret_cast<Initialize>(dlsym(RTLD_DEFAULT, "cpuinfo_initialize"));
  errno = 0;
  if (initialize == nullptr || initialize()) return;
  // Where these are hidden, as some sandboxes do, it never knows: all runs there have the same bits.
  const bool no_memory = errno == ENOMEM;
  const bool told = can_be_read("/proc/cpuinfo") && can_be_read("/sys/devices/system/cpu/possible") &&
                    can_be_read("/sys/devices/system/cpu/present");
  if (!no_memory && !told) return;
  throw RefusedError(
      "out of memory: LibTorch could not ask what this processor can do, and would compute with other bits");
#endif
}

}  // namespace stagecraft
