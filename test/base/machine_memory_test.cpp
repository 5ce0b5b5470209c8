// What limits the memory of a process, read from trees of files like the kernel's.

#include "base/machine_memory.h"

#include "base/cgroups.h"
#include "test/support/catch.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sys/resource.h>
#include <unistd.h>

namespace stagecraft {
namespace {

namespace fs = std::filesystem;
constexpr std::int64_t kMiB = std::int64_t{1} << 20U;

/// A root of its own with a machine of 1000 MiB, 800 of them free.
class FakeRoot {
 public:
  FakeRoot() {
    std::string name = (fs::temp_directory_path() / "stagecraft-root-XXXXXX").string();
    root_ = ::mkdtemp(name.data());
    write("/proc/meminfo",
          "MemTotal:       1024000 kB\nMemFree:         100 kB\nMemAvailable:    819200 kB\n");
  }
  ~FakeRoot() { fs::remove_all(root_); }
  FakeRoot(const FakeRoot&) = delete;
  FakeRoot& operator=(const FakeRoot&) = delete;

  void write(const std::string& path, const std::string& text) const {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  void second_version(const std::string& folder, const std::string& limit, const std::string& current,
                      const std::string& stat = "") const {
    write("/sys/fs/cgroup" + folder + "/memory.max", limit + "\n");
    write("/sys/fs/cgroup" + folder + "/memory.current", current + "\n");
    write("/sys/fs/cgroup" + folder + "/memory.stat", stat);
  }
  [[nodiscard]] std::vector<MemoryLimit> limits() const { return memory_limits(root_); }
  [[nodiscard]] const std::string& root() const { return root_; }

 private:
  std::string root_;
};

constexpr const char* kSecondVersion =
    "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";

TEST_CASE("the machine's own memory is what the kernel says is available", "[machine_memory]") {
  const FakeRoot root;
  const auto limits = root.limits();
  REQUIRE(limits.size() == 1);
  CHECK(limits[0].total == Bytes{1000 * kMiB});
  CHECK(limits[0].available == Bytes{800 * kMiB});
  CHECK(describe_limit(limits[0]) == "800.0 MiB are free of this machine's memory (1000.0 MiB)");
}

TEST_CASE("free swap can be had too", "[machine_memory]") {
  const FakeRoot root;
  root.write("/proc/meminfo",
             "MemTotal: 1024000 kB\nMemAvailable: 819200 kB\nSwapTotal: 204800 kB\nSwapFree: 102400 kB\n");
  CHECK(root.limits().at(0).total == Bytes{1200 * kMiB});
  CHECK(root.limits().at(0).available == Bytes{900 * kMiB});
}

TEST_CASE("a cgroup of version 2 and those above it limit, less page cache", "[machine_memory]") {
  const FakeRoot root;
  root.write("/proc/self/mountinfo", kSecondVersion);
  root.write("/proc/self/cgroup", "0::/job/step\n");
  root.second_version("/job/step", "max", std::to_string(300 * kMiB));
  root.second_version("/job", std::to_string(400 * kMiB), std::to_string(300 * kMiB),
                      "anon 5\nactive_file 10485760\ninactive_file 20971520\nslab_reclaimable 1048576\n");
  const auto limits = root.limits();
  REQUIRE(limits.size() == 2);
  CHECK(limits[1].name == "memory.max of cgroup /sys/fs/cgroup/job");
  CHECK(limits[1].total == Bytes{400 * kMiB});
  CHECK(limits[1].available == Bytes{131 * kMiB});
}

TEST_CASE("inside a container the cgroup is the mount's root", "[machine_memory]") {
  const FakeRoot root;
  root.write("/proc/self/mountinfo",
             "30 23 0:26 /docker/abc /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw,nsdelegate\n");
  root.write("/proc/self/cgroup", "0::/docker/abc\n");
  root.second_version("", std::to_string(64 * kMiB), std::to_string(4 * kMiB));
  REQUIRE(root.limits().size() == 2);
  CHECK(root.limits()[1].available == Bytes{60 * kMiB});
  CHECK(root.limits()[1].name == "memory.max of cgroup /sys/fs/cgroup");
}

TEST_CASE("a cgroup of version 1 limits, the tightest and all above it", "[machine_memory]") {
  const FakeRoot root;
  root.write("/proc/self/mountinfo",
             "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
             "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
             "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
  root.write("/proc/self/cgroup", "9:cpu:/elsewhere\n4:memory:/slurm/job\n0::/\n");
  root.write("/sys/fs/cgroup/memory/slurm/job/memory.limit_in_bytes", std::to_string(100 * kMiB));
  root.write("/sys/fs/cgroup/memory/slurm/job/memory.usage_in_bytes", std::to_string(90 * kMiB));
  root.write("/sys/fs/cgroup/memory/slurm/job/memory.stat",
             "inactive_file 1\ntotal_inactive_file 31457280\n");
  root.write("/sys/fs/cgroup/memory/slurm/memory.limit_in_bytes", std::to_string(200 * kMiB));
  root.write("/sys/fs/cgroup/memory/slurm/memory.usage_in_bytes", std::to_string(195 * kMiB));
  root.write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712");
  root.write("/sys/fs/cgroup/memory/memory.usage_in_bytes", "5");
  const auto limits = root.limits();
  REQUIRE(limits.size() == 3);
  CHECK(limits[1].name == "memory.limit_in_bytes of cgroup /sys/fs/cgroup/memory/slurm/job");
  CHECK(limits[1].available == Bytes{40 * kMiB});
  CHECK(limits[2].available == Bytes{5 * kMiB});
  CHECK(limits[1].scope != limits[2].scope);
}

TEST_CASE("the tightest CPU quota of a cgroup and those above it counts", "[machine_memory]") {
  const FakeRoot root;
  CHECK_FALSE(cpu_quota(root.root()));
  root.write("/proc/self/mountinfo", kSecondVersion);
  root.write("/proc/self/cgroup", "0::/job/step\n");
  root.write("/sys/fs/cgroup/job/step/cpu.max", "max 100000\n");
  CHECK_FALSE(cpu_quota(root.root()));
  root.write("/sys/fs/cgroup/job/cpu.max", "150000 100000\n");
  CHECK(cpu_quota(root.root()) == 1.5);
  root.write("/sys/fs/cgroup/job/step/cpu.max", "50000 100000\n");
  CHECK(cpu_quota(root.root()) == 0.5);
  for (const char* nonsense : {"", "x", "100000", "100000 0\n", "-5 10\n"}) {
    root.write("/sys/fs/cgroup/job/step/cpu.max", nonsense);
    CHECK(cpu_quota(root.root()) == 1.5);
  }
}

TEST_CASE("a CPU quota of version 1, where -1 is none", "[machine_memory]") {
  const FakeRoot root;
  root.write("/proc/self/mountinfo",
             "31 23 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n");
  root.write("/proc/self/cgroup", "5:cpuacct,cpu:/job\n3:memory:/other\n");
  root.write("/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
  root.write("/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "-1\n");
  CHECK_FALSE(cpu_quota(root.root()));
  root.write("/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "250000\n");
  CHECK(cpu_quota(root.root()) == 2.5);
}

TEST_CASE("what is missing or nonsense is no limit", "[machine_memory]") {
  const FakeRoot root;
  for (const char* mounts : {"", "nonsense\n", " - \n", kSecondVersion}) {
    root.write("/proc/self/mountinfo", mounts);
    for (const char* cgroups : {"", "::\n", "0::\n", "nonsense", "0::/gone/away\n"}) {
      root.write("/proc/self/cgroup", cgroups);
      CHECK(root.limits().size() == 1);
    }
  }
  fs::remove(root.root() + "/proc/meminfo");
  CHECK(root.limits().empty());
}

TEST_CASE("limits of the process count what it has already", "[machine_memory]") {
  const FakeRoot root;
  root.write("/proc/self/status", "VmSize:  10240 kB\nVmData:   2048 kB\n");
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_DATA, &before) == 0);
  const rlimit lower{rlim_t{1} << 46U, before.rlim_max};  // above what sanitizers map
  REQUIRE(::setrlimit(RLIMIT_DATA, &lower) == 0);
  const auto limits = root.limits();
  REQUIRE(::setrlimit(RLIMIT_DATA, &before) == 0);
  const auto own = std::find_if(limits.begin(), limits.end(),
                                [](const MemoryLimit& limit) { return limit.name == "ulimit -d"; });
  REQUIRE(own != limits.end());
  CHECK(own->scope == "process");
  CHECK(own->total - own->available == Bytes{2 * kMiB});
}

TEST_CASE("this machine has memory", "[machine_memory]") {
  const auto limits = memory_limits();
  REQUIRE(!limits.empty());
  CHECK(limits[0].total > Bytes{100 * kMiB});
  CHECK(limits[0].available <= limits[0].total);
  CHECK(limits[0].available > Bytes{0});
}

}  // namespace
}  // namespace stagecraft
