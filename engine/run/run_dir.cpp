#include "engine/run/run_dir.h"

#include "schedules/base/error.h"
#include "schedules/base/files.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <sys/file.h>
#include <unistd.h>

namespace stagecraft {
namespace {

constexpr const char* kLock = ".lock";

bool holds_a_run(const std::string& root) {
  for (const auto& entry : std::filesystem::directory_iterator(root)) {
    if (entry.path().filename() != kLock) return true;
  }
  return false;
}

std::string holder(const std::string& lock_path) {
  std::string pid;
  std::ifstream(lock_path) >> pid;
  return pid.empty() ? "another run" : "another run, process " + pid;
}

}  // namespace

std::string RunPaths::log(Rank rank) const { return fmt::format("{}/rank-{}.log", logs(), rank.value); }

void make_folder(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error || !std::filesystem::is_directory(path)) {
    throw InputError({path, ""},
                     fmt::format("the folder cannot be made: {}",
                                 error ? error.message() : std::string("a file is in its place")));
  }
}

RunDirectory::RunDirectory(const std::string& path, bool resume) : paths_{path} {
  make_folder(path);
  const std::string lock_path = path + "/" + kLock;
  lock_ = ::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (lock_ < 0) {
    throw InputError({path, ""}, fmt::format("the folder cannot be written: {}", std::strerror(errno)));
  }
  const auto give_up = [&](const std::string& why) {
    ::close(lock_);
    throw InputError({path, ""}, why);
  };
  if (::flock(lock_, LOCK_EX | LOCK_NB) != 0) {
    give_up(fmt::format("is in use by {}; wait for it, or choose another run_dir", holder(lock_path)));
  }
  if (!resume && holds_a_run(path)) {
    give_up("holds an earlier run; go on with --resume, choose another run_dir, or remove it");
  }
  const std::string pid = fmt::format("{}\n", ::getpid());
  if (::ftruncate(lock_, 0) != 0 || ::write(lock_, pid.data(), pid.size()) < 0) {
    give_up(fmt::format("the folder cannot be written: {}", std::strerror(errno)));
  }
  ::unlink(paths_.exit_record().c_str());
}

RunDirectory::~RunDirectory() { ::close(lock_); }

bool record_exit(const RunPaths& paths, const ExitRecord& record) noexcept {
  try {
    // Made whole under a name of its own, then linked: link() fails where exit.json is, so that the first one
    // wins and nobody ever reads half of it.
    const std::string aside = fmt::format("{}.{}.{}", paths.exit_record(), ::getpid(), record.rank.value);
    write_json_file(aside, json::write(record));
    const bool first = ::link(aside.c_str(), paths.exit_record().c_str()) == 0 || errno != EEXIST;
    ::unlink(aside.c_str());
    return first;
  } catch (...) {
    return true;
  }
}

}  // namespace stagecraft
