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

namespace {

/// Whether it has ended and nobody asked how: in containers whose first process asks for none, that stays so.
bool is_zombie(long process) {
  constexpr std::uint64_t kMostBytes = 4096;
  try {
    // "PID (name, which may be anything) STATE ..."
    const std::string stat = read_file("/proc/" + std::to_string(process) + "/stat", kMostBytes);
    const std::size_t name_end = stat.rfind(')');
    return name_end != std::string::npos && stat.compare(name_end, 3, ") Z") == 0;
  } catch (const InputError&) {
    return false;
  }
}

bool is_there_still(long process) {
  const bool known = ::kill(static_cast<pid_t>(process), 0) == 0 || errno == EPERM;
  return known && !is_zombie(process);
}

bool is_of_here(const RunHolder& holder) {
  return holder.processes == process_numbers_here() && holder.process > 0;
}

}  // namespace

bool has_ended(const RunHolder& holder) { return is_of_here(holder) && !is_there_still(holder.process); }

bool is_alive(const RunHolder& holder) { return is_of_here(holder) && is_there_still(holder.process); }

}  // namespace stagecraft
