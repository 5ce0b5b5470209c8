#pragma once

// The memory that this process may have: the machine's, less where a cgroup (a container, a Slurm job) or the
// process's own limits (ulimit -v, ulimit -d) allow less. Linux; elsewhere nothing is known.

#include "base/ids.h"

#include <optional>
#include <string>
#include <vector>

namespace stagecraft {

/// One limit, and what is left below it now. Page cache counts as left, since the kernel gives it up, and so
/// does free swap: what is refused by these figures could not be had.
struct MemoryLimit {
  std::string name;   ///< "this machine's memory", "memory.max of cgroup /sys/fs/cgroup/job", "ulimit -d"
  std::string scope;  ///< processes with equal scopes of one machine share the limit; "process": its own
  Bytes total, available;
};
void describe(auto& v, MemoryLimit& m) {
  v.required("name", m.name, "for people");
  v.required("scope", m.scope, "what processes that share the limit have in common");
  v.required("total_bytes", m.total, "the limit");
  v.required("available_bytes", m.available, "left below it");
}

/// Every limit that can be read, the machine's first. What cannot be read is left out. `root` stands in front
/// of /proc and the cgroups' folders: tests have files of their own.
[[nodiscard]] std::vector<MemoryLimit> memory_limits(const std::string& root = "");

/// The one with the least left; none of none.
[[nodiscard]] std::optional<MemoryLimit> tightest(const std::vector<MemoryLimit>& limits);

/// "20.1 GiB are free of this machine's memory (23.5 GiB)"
[[nodiscard]] std::string describe_limit(const MemoryLimit& limit);

}  // namespace stagecraft
