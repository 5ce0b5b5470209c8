#include "stagecraft/engine/transport/cores.h"

#include <fstream>
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

std::string boot_id() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id;
}

}  // namespace stagecraft::transport
