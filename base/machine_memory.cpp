#include "base/machine_memory.h"

#include "base/cgroups.h"
#include "base/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <initializer_list>
#include <limits>
#include <optional>
#include <sstream>
#include <sys/resource.h>
#include <sys/stat.h>

namespace stagecraft {
namespace {

constexpr std::int64_t kKibi = 1024;

std::string text_of(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

/// A number alone in its file; none for "max" and for what is no file.
std::optional<std::int64_t> number_in(const std::string& path) {
  const std::string text = text_of(path);
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end == text.data()) return std::nullopt;
  return value;
}

/// The number behind `key` at the beginning of a line: "MemAvailable:   123 kB", "inactive_file 123".
std::optional<std::int64_t> field(const std::string& text, const std::string& key) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string name;
    std::int64_t value = 0;
    if (words >> name >> value && name == key) return value;
  }
  return std::nullopt;
}

std::int64_t sum_of(const std::string& text, std::initializer_list<const char*> keys) {
  std::int64_t sum = 0;
  for (const char* key : keys) sum += field(text, key).value_or(0);
  return sum;
}

/// The same on all processes of a cgroup, whatever name a container gives it.
std::string identity(const std::string& folder) {
  struct stat status {};
  if (::stat(folder.c_str(), &status) != 0) return folder;
  return fmt::format("cgroup {}:{}", status.st_dev, status.st_ino);
}

class Reader {
 public:
  explicit Reader(std::string root) : root_(std::move(root)) {}

  std::vector<MemoryLimit> all() {
    machine();
    for (const CgroupVersion version : {CgroupVersion::second, CgroupVersion::first}) {
      for (const std::string& folder : cgroup_folders(root_, version, "memory")) cgroup(folder, version);
    }
    own();
    return std::move(limits_);
  }

 private:
  void add(std::string name, std::string scope, std::int64_t total, std::int64_t available) {
    limits_.push_back({std::move(name), std::move(scope), Bytes{total},
                       Bytes{std::clamp<std::int64_t>(available, 0, total)}});
  }

  void machine() {
    const std::string info = text_of(root_ + "/proc/meminfo");
    const auto total = field(info, "MemTotal:");
    const auto available = field(info, "MemAvailable:");
    if (!total || !available) return;
    machine_ = *total * kKibi;
    swap_ = field(info, "SwapFree:").value_or(0) * kKibi;
    const std::int64_t all_swap = field(info, "SwapTotal:").value_or(0) * kKibi;
    add(all_swap > 0 ? "this machine's memory and swap" : "this machine's memory", "machine",
        machine_ + all_swap, *available * kKibi + swap_);
  }

  /// A limit above the machine's memory is none.
  void cgroup(const std::string& folder, CgroupVersion version) {
    const bool second_version = version == CgroupVersion::second;
    const char* const file = second_version ? "memory.max" : "memory.limit_in_bytes";
    const auto limit = number_in(folder + "/" + file);
    const auto used = number_in(folder + (second_version ? "/memory.current" : "/memory.usage_in_bytes"));
    if (!limit || !used || (machine_ > 0 && *limit >= machine_)) return;
    const std::string stat = text_of(folder + "/memory.stat");
    const std::int64_t reclaimable = second_version
                                         ? sum_of(stat, {"active_file", "inactive_file", "slab_reclaimable"})
                                         : sum_of(stat, {"total_active_file", "total_inactive_file"});
    add(fmt::format("{} of cgroup {}{}", file, folder.substr(root_.size()),
                    swap_ > 0 ? " with free swap" : ""),
        identity(folder), *limit + swap_, *limit - *used + reclaimable + swap_);
  }

  /// The process's own: all addresses, and all that is not a file's.
  void own() {
    const std::string status = text_of(root_ + "/proc/self/status");
    const auto limit_of = [&](auto resource, const char* name, const char* used) {
      rlimit limit{};
      if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
      const auto bytes = static_cast<std::int64_t>(
          std::min<rlim_t>(limit.rlim_cur, std::numeric_limits<std::int64_t>::max()));
      add(name, "process", bytes, bytes - field(status, used).value_or(0) * kKibi);
    };
    limit_of(RLIMIT_AS, "ulimit -v", "VmSize:");
    limit_of(RLIMIT_DATA, "ulimit -d", "VmData:");
  }

  std::string root_;
  std::int64_t machine_ = 0;
  std::int64_t swap_ = 0;
  std::vector<MemoryLimit> limits_;
};

}  // namespace

std::vector<MemoryLimit> memory_limits(const std::string& root) { return Reader(root).all(); }

std::optional<MemoryLimit> tightest(const std::vector<MemoryLimit>& limits) {
  const auto least = std::ranges::min_element(limits, {}, &MemoryLimit::available);
  return least == limits.end() ? std::nullopt : std::optional(*least);
}

std::string describe_limit(const MemoryLimit& limit) {
  return fmt::format("{} are free of {} ({})", format_bytes(limit.available), limit.name,
                     format_bytes(limit.total));
}

}  // namespace stagecraft
