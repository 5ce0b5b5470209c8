#include "engine/transport/cores.h"

#include "base/boot_id.h"
#include "base/cgroups.h"

#include <algorithm>
#include <cmath>
#include <sched.h>
#include <unistd.h>

namespace stagecraft::transport {

std::vector<int> bound_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  const bool asked = sched_getaffinity(0, sizeof set, &set) == 0;
  std::vector<int> cores;
  const int machine = asked ? CPU_SETSIZE : static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  for (int core = 0; core < machine; ++core) {
    if (!asked || CPU_ISSET(core, &set)) cores.push_back(core);
  }
  return cores;
}

CoreCounts count_cores() {
  CoreCounts cores{static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)), static_cast<int>(bound_cores().size())};
  if (const auto quota = cpu_quota()) {
    const int most = static_cast<int>(std::min(std::ceil(*quota), static_cast<double>(cores.machine)));
    cores.machine = std::max(1, most);
    cores.usable = std::min(cores.usable, cores.machine);
  }
  return cores;
}

std::string boot_id() { return stagecraft::boot_id(); }

}  // namespace stagecraft::transport
