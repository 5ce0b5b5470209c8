#include "engine/records/metrics/run_holder.h"

#include "base/boot_id.h"
#include "base/files.h"

#include <cerrno>
#include <charconv>
#include <csignal>
#include <sstream>

namespace stagecraft {

std::string process_numbers_here() {
  std::string container;
  (void)storage().read_link("/proc/self/ns/pid", container);
  return boot_id() + "/" + container;
}

std::error_code read_holder(const std::string& path, RunHolder& holder) {
  StoredFilePtr file;
  std::error_code error = storage().open(path, OpenFor::reading, file);
  std::string text(kMostLockBytes, '\0');
  std::size_t bytes = 0;
  for (std::size_t got = 1; !error && got > 0 && bytes < text.size(); bytes += got) {
    error = file->read(text.data() + bytes, text.size() - bytes, got);
  }
  if (error) return error;
  text.resize(bytes);
  if (text.starts_with(kRunMark)) text.erase(0, text.find('\n'));
  holder = {};
  std::istringstream(text) >> holder.process >> holder.machine >> holder.processes >> holder.session;
  return {};
}

RunHolder read_holder(const std::string& path) {
  RunHolder holder;
  if (const std::error_code error = read_holder(path, holder)) throw unreadable(path, error);
  return holder;
}

std::int64_t start_number(const RunHolder& holder) {
  std::string_view text = holder.session;
  if (!text.starts_with(kStartMark)) return 0;
  text.remove_prefix(kStartMark.size());
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && number > 0 ? number : 0;
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
