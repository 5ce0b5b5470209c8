#pragma once

// What the kernel's control groups (containers, Slurm jobs) leave a process, where that is no memory:
// base/machine_memory.h has that. Linux, versions 1 and 2; elsewhere nothing is known.

#include <optional>
#include <string>
#include <vector>

namespace stagecraft {

enum class CgroupVersion : unsigned char { first, second };

/// The folders of the process's cgroup and of all above it, the innermost first; none where there is no
/// such hierarchy. `controller` ("memory", "cpu") chooses the hierarchy of version 1. `root` stands in front of
/// /proc and the folders: tests have files of their own.
[[nodiscard]] std::vector<std::string> cgroup_folders(const std::string& root, CgroupVersion version,
                                                      const std::string& controller);

/// Processors' worth of time per second that the tightest of them allows: 1.5 for "150000 100000" in
/// `cpu.max`. None: no limit. All processes of the cgroup share it.
[[nodiscard]] std::optional<double> cpu_quota(const std::string& root = "");

}  // namespace stagecraft
