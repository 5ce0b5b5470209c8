#include "base/cgroups.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <sstream>

namespace stagecraft {
namespace {

std::string whole_text(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

/// Where a kind of cgroup is mounted, and which of its folders that shows.
struct Mount {
  std::string root, point;
};

/// "36 25 0:28 /root /mount/point rw,relatime shared:1 - cgroup2 cgroup2 rw,memory"
std::optional<Mount> mount_of(const std::string& mounts, CgroupVersion version,
                              const std::string& controller) {
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
    const bool controls =
        fmt::format(",{},", options).find(fmt::format(",{},", controller)) != std::string::npos;
    if (version == CgroupVersion::second ? type == "cgroup2" : type == "cgroup" && controls) return mount;
  }
  return std::nullopt;
}

/// The process's folder below the mount: "0::/job" (version 2), "4:memory:/job" (version 1).
std::optional<std::string> cgroup_folder(const std::string& cgroups, CgroupVersion version,
                                         const std::string& controller) {
  std::istringstream lines(cgroups);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string kinds = fmt::format(",{},", line.substr(first + 1, second - first - 1));
    if (version == CgroupVersion::second ? kinds == ",,"
                                         : kinds.find(fmt::format(",{},", controller)) != std::string::npos) {
      return line.substr(second + 1);
    }
  }
  return std::nullopt;
}

/// Microseconds of processor time per period; none for what is no limit.
std::optional<double> share(std::istream& quota, std::istream& period) {
  double most = 0, per = 0;
  if (!(quota >> most) || !(period >> per) || most <= 0 || per <= 0) return std::nullopt;
  return most / per;
}

}  // namespace

std::vector<std::string> cgroup_folders(const std::string& root, CgroupVersion version,
                                        const std::string& controller) {
  const auto mount = mount_of(whole_text(root + "/proc/self/mountinfo"), version, controller);
  auto folder = cgroup_folder(whole_text(root + "/proc/self/cgroup"), version, controller);
  if (!mount || !folder) return {};
  // A container may see its own folder as the mount's root while the kernel names it from the top.
  if (mount->root != "/" && folder->starts_with(mount->root)) folder->erase(0, mount->root.size());
  std::vector<std::string> folders;
  while (true) {
    while (folder->ends_with('/')) folder->pop_back();
    folders.push_back(root + mount->point + *folder);
    if (folder->empty()) return folders;
    folder->erase(folder->rfind('/') == std::string::npos ? 0 : folder->rfind('/'));
  }
}

std::optional<double> cpu_quota(const std::string& root) {
  std::optional<double> least;
  const auto take = [&](std::optional<double> quota) {
    if (quota) least = std::min(least.value_or(*quota), *quota);
  };
  for (const std::string& folder : cgroup_folders(root, CgroupVersion::second, "cpu")) {
    std::ifstream both(folder + "/cpu.max");
    take(share(both, both));
  }
  for (const std::string& folder : cgroup_folders(root, CgroupVersion::first, "cpu")) {
    std::ifstream quota(folder + "/cpu.cfs_quota_us"), period(folder + "/cpu.cfs_period_us");
    take(share(quota, period));
  }
  return least;
}

}  // namespace stagecraft
