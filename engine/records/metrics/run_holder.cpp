#include "engine/records/metrics/run_holder.h"

#include "base/boot_id.h"
#include "base/files.h"

#include <cerrno>
#include <csignal>
#include <sstream>

namespace stagecraft {

std::string process_numbers_here() {
  std::string container;
  (void)storage().read_link("/proc/self/ns/pid", container);
  return boot_id() + "/" + container;
}

RunHolder read_holder(const std::string& path) {
  RunHolder holder;
  std::string text = read_file(path, kMostLockBytes);
  if (text.starts_with(kRunMark)) text.erase(0, text.find('\n'));
  std::istringstream(text) >> holder.process >> holder.machine >> holder.processes >> holder.session;
  return holder;
}

bool has_ended(const RunHolder& holder) {
  if (holder.processes != process_numbers_here()) return false;
  return holder.process > 0 && ::kill(static_cast<pid_t>(holder.process), 0) != 0 && errno == ESRCH;
}

bool is_alive(const RunHolder& holder) {
  if (holder.processes != process_numbers_here() || holder.process <= 0) return false;
  return ::kill(static_cast<pid_t>(holder.process), 0) == 0 || errno == EPERM;
}

}  // namespace stagecraft
