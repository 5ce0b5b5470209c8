#include "models/tensors/known_processor.h"

#include "base/error.h"

extern "C" bool
cpuinfo_initialize();  // of the cpuinfo in LibTorch; does its work once, and remembers how that ended

namespace stagecraft {

void require_known_processor() {
#if defined(__x86_64__) || defined(__aarch64__)  // others it may not know at all
  if (cpuinfo_initialize()) return;
  throw RefusedError(
      "out of memory, or /proc and /sys cannot be read: LibTorch does not know what this processor can do, "
      "and would "
      "compute with other bits");
#endif
}

}  // namespace stagecraft
