#include "stagecraft/engine/run/run_dir.h"

#include "stagecraft/base/error.h"
#include "stagecraft/base/json.h"
#include "stagecraft/engine/transport/cores.h"

#include <fmt/format.h>

#include <csignal>
#include <filesystem>
#include <sstream>
#include <unistd.h>

namespace stagecraft {
namespace {

/// Who holds a directory, as `.lock` and `.owner` have it: "<process> <machine> <processes> <session>".
struct Holder {
  long process = 0;
  std::string machine;    ///< name, for people
  std::string processes;  ///< which numbers of processes are meant: the running kernel and the container
  std::string session;
};

std::string numbers_here() {
  std::string container;
  (void)storage().read_link("/proc/self/ns/pid", container);
  return transport::boot_id() + "/" + container;
}

Holder this_process(const std::string& session) {
  std::string machine(256, '\0');
  if (::gethostname(machine.data(), machine.size() - 1) != 0) machine = "?";
  return {static_cast<long>(::getpid()), machine.c_str(), numbers_here(), session};
}

std::string text_of(const Holder& holder) {
  return fmt::format("{} {} {} {}\n", holder.process, holder.machine, holder.processes, holder.session);
}

Holder holder_of(const std::string& path) {
  constexpr std::uint64_t kMostBytes = 4096;
  Holder holder;
  std::istringstream(read_file(path, kMostBytes)) >> holder.process >> holder.machine >> holder.processes >>
      holder.session;
  return holder;
}

std::string name_of(const Holder& holder) {
  if (holder.process == 0) return "another run";
  return fmt::format("another run, process {}{}", holder.process,
                     holder.machine.empty() ? "" : " on " + holder.machine);
}

bool gone(const Holder& holder) {
  if (holder.processes != numbers_here()) return false;
  return holder.process > 0 && ::kill(static_cast<pid_t>(holder.process), 0) != 0 && errno == ESRCH;
}

bool holds_a_run(const RunPaths& paths) {
  for (const std::string& name : names_in(paths.root)) {
    const std::string path = paths.root + "/" + name;
    if (path != paths.lock() && path != paths.owner()) return true;
  }
  return false;
}

}  // namespace

std::string RunPaths::log(Rank rank) const { return fmt::format("{}/rank-{}.log", logs(), rank.value); }

RunDirectory::RunDirectory(const std::string& path, bool resume)
    // Other ranks, which may have been started in other folders, are told of paths in it.
    : paths_{std::filesystem::absolute(path).lexically_normal().string(), unique_name("run")} {
  make_folder(path);
  lock();
  if (!resume && holds_a_run(paths_)) {
    throw InputError({path, ""},
                     "holds an earlier run; go on with --resume, choose another run_dir, or remove it");
  }
  for (const std::string& name : names_in(path)) {
    if (name.ends_with(".part")) (void)remove_tree(path + "/" + name);  // of a process that was killed
  }
  const std::string mine = text_of(this_process(paths_.session));
  std::error_code error = lock_->cut(0);
  if (!error) error = write_all(*lock_, mine);
  if (error) throw InputError({path, ""}, "the folder cannot be written: " + error.message());
  (void)storage().remove(paths_.exit_record());
}

void RunDirectory::lock() {
  const auto refuse = [&](const std::string& why) { throw InputError({paths_.root, ""}, why); };
  std::error_code error = storage().open(paths_.lock(), OpenFor::locking, lock_);
  if (error == std::errc::too_many_symbolic_link_levels) {
    refuse("its .lock is a link, which would be written to; remove it");
  }
  if (error) refuse("the folder cannot be written: " + error.message());
  FileFacts opened, named;
  if (lock_->facts(opened) || !opened.is_file() || opened.names > 1) {
    refuse("its .lock is no file of its own, and would be written to; remove it");
  }
  error = lock_->lock();
  if (error == std::errc::resource_unavailable_try_again) {
    refuse(fmt::format("is in use by {}; wait for it, or choose another run_dir",
                       name_of(holder_of(paths_.lock()))));
  }
  if (error == std::errc::no_lock_available || error == std::errc::function_not_supported ||
      error == std::errc::operation_not_supported || error == std::errc::invalid_argument) {
    return claim();
  }
  if (error) refuse("cannot be locked: " + error.message());
  // Removed and made again by somebody else between the two calls: the lock is on a file without a name.
  if (storage().facts(paths_.lock(), /*follow=*/false, named) || named.identity != opened.identity) {
    refuse("its .lock was replaced just now; is another run starting there?");
  }
}

void RunDirectory::claim() {
  const std::string mine = text_of(this_process(paths_.session));
  if (is_there(paths_.owner())) {
    const Holder holder = holder_of(paths_.owner());
    if (!gone(holder)) {
      throw InputError(
          {paths_.root, ""},
          fmt::format("is in use by {}, or that run was killed: this file system has no locks that "
                      "would tell. Remove {} if you know that it is gone",
                      name_of(holder), paths_.owner()));
    }
    (void)storage().remove(paths_.owner());
  }
  write_new_file(paths_.owner(), {mine});
  claimed_ = true;
}

RunDirectory::~RunDirectory() {
  if (claimed_) (void)storage().remove(paths_.owner());
}

void check_session(const RunPaths& paths) {
  if (paths.session.empty()) return;
  const Holder holder = holder_of(paths.lock());
  if (holder.session == paths.session) return;
  throw InputError(
      {paths.root, ""},
      fmt::format("was taken by {} while this run was using it: two runs would overwrite each other. "
                  "This one stops; its last checkpoint is untouched",
                  name_of(holder)));
}

bool record_exit(const RunPaths& paths, const ExitRecord& record) noexcept {
  try {
    // Made whole under a name of its own, then linked: that fails where exit.json is, so that the first one
    // wins and nobody ever reads half of it.
    const std::string text = json::write(record).dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
    const std::string aside = unique_name(paths.exit_record()) + ".part";
    write_new_file(aside, {text});
    const std::error_code error = storage().link(aside, paths.exit_record());
    (void)storage().remove(aside);
    if (error && is_there(paths.exit_record())) return false;
    if (error) write_new_file(paths.exit_record(), {text});  // a file system without hard links
    return true;
  } catch (...) {
    return true;
  }
}

}  // namespace stagecraft
