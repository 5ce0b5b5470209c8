#include "stagecraft/base/machine_memory.h"

#include "stagecraft/base/table.h"

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

/// Where a kind of cgroup is mounted, and which of its folders that shows.
struct Mount {
  std::string root, point;
};

/// "36 25 0:28 /root /mount/point rw,relatime shared:1 - cgroup2 cgroup2 rw,memory"
std::optional<Mount> mount_of(const std::string& mounts, bool second_version) {
  std::istringstream lines(mounts);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::istringstream before(line.substr(0, dash));
    std::istringstream after(line.substr(dash + 3));
    std::string skipped, type, source, options;
    Mount mount;
    before >> skipped >> skipped >> skipped >> mount.root >> mount.point;
    after >> type >> source >> options;
    const bool memory = fmt::format(",{},", options).find(",memory,") != std::string::npos;
    if (second_version ? type == "cgroup2" : type == "cgroup" && memory) return mount;
  }
  return std::nullopt;
}

/// The process's folder below the mount: "0::/job" (version 2), "4:memory:/job" (version 1).
std::optional<std::string> folder_of(const std::string& cgroups, bool second_version) {
  std::istringstream lines(cgroups);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string kinds = fmt::format(",{},", line.substr(first + 1, second - first - 1));
    if (second_version ? kinds == ",," : kinds.find(",memory,") != std::string::npos) {
      return line.substr(second + 1);
    }
  }
  return std::nullopt;
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
    cgroups(/*second_version=*/true);
    cgroups(/*second_version=*/false);
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

  /// The process's cgroup and those above it. A limit above the machine's memory is none.
  void cgroups(bool second_version) {
    const auto mount = mount_of(text_of(root_ + "/proc/self/mountinfo"), second_version);
    auto folder = folder_of(text_of(root_ + "/proc/self/cgroup"), second_version);
    if (!mount || !folder) return;
    // A container may see its own folder as the mount's root while the kernel names it from the top.
    if (mount->root != "/" && folder->starts_with(mount->root)) folder->erase(0, mount->root.size());
    while (true) {
      while (folder->ends_with('/')) folder->pop_back();
      cgroup(root_ + mount->point + *folder, second_version);
      if (folder->empty()) return;
      folder->erase(folder->rfind('/') == std::string::npos ? 0 : folder->rfind('/'));
    }
  }

  void cgroup(const std::string& folder, bool second_version) {
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
