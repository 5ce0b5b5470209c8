#include "engine/run/save/run_dir.h"

#include "base/error.h"
#include "base/json.h"
#include "engine/records/metrics/manifest.h"
#include "engine/records/metrics/run_holder.h"
#include "engine/run/save/checkpoint_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <unistd.h>

namespace stagecraft {
namespace {

/// The identity in `.lock`; "" where no run wrote it.
std::string run_in(std::string_view lock) {
  const std::size_t end = lock.find('\n');
  if (!lock.starts_with(kRunMark) || end == std::string_view::npos) return "";
  return std::string(lock.substr(kRunMark.size(), end - kRunMark.size()));
}

/// Whether a power cut may have left no more of a first line.
bool broken_off(std::string_view lock) {
  return lock.find_first_not_of('\0') == std::string_view::npos ||
         (lock.find('\n') == std::string_view::npos &&
          lock.substr(0, kRunMark.size()) == kRunMark.substr(0, lock.size()));
}

RunHolder this_process(const std::string& session) {
  std::string machine(256, '\0');
  if (::gethostname(machine.data(), machine.size() - 1) != 0) machine = "?";
  return {static_cast<long>(::getpid()), machine.c_str(), process_numbers_here(), session};
}

std::string text_of(const RunHolder& holder) {
  return fmt::format("{} {} {} {}\n", holder.process, holder.machine, holder.processes, holder.session);
}

std::string name_of(const RunHolder& holder) {
  if (holder.process == 0) return "another run";
  return fmt::format("another run, process {}{}", holder.process,
                     holder.machine.empty() ? "" : " on " + holder.machine);
}

/// Empty for a line that is being written.
std::string taker(const RunHolder& holder) {
  const std::int64_t number = start_number(holder);
  std::string who = number == 0 ? "another start of the run" : fmt::format("start {} of the run", number);
  if (holder.process == 0) return who;
  return fmt::format("{} (process {} on {})", who, holder.process, holder.machine);
}

[[noreturn]] void taken_over(const std::string& root, const RunHolder& holder) {
  throw TakenOverError(fmt::format("{}: was taken over by {}: this one stops, and writes nothing more there",
                                   root, taker(holder)));
}

/// Throws InputError where it is in use: flock is held by somebody else.
[[noreturn]] void refuse_held(const RunPaths& paths) {
  const RunHolder holder = read_holder(paths.lock());
  if (has_ended(holder)) {
    throw InputError(
        {paths.root, ""},
        fmt::format("its .lock is held by some process, but not by the run that it names (process {}, "
                    "which has ended): find it with lslocks or fuser and end it",
                    holder.process));
  }
  throw InputError({paths.root, ""},
                   fmt::format("is in use by {}; wait for it, or choose another run_dir", name_of(holder)));
}

/// The identity of the run whose newest checkpoint is there; "" for none.
std::string run_of_checkpoints(const RunPaths& paths) {
  if (!is_folder(paths.checkpoints())) return "";
  require_own_folder(paths.checkpoints());
  const std::string newest = newest_checkpoint(paths.checkpoints());
  return newest.empty() ? "" : read_manifest(newest).run;
}

/// What a session that was killed left half-written: names aside of the run's own files.
void sweep_run_files(const RunPaths& paths) {
  for (const std::string& file :
       {paths.config(), paths.plan(), paths.profile(), paths.metrics(), paths.timeline(), paths.summary(),
        paths.exit_record(), paths.root + "/probe"}) {
    sweep_asides(file, /*alone=*/true);
  }
  const auto is_own = [](const std::string& folder) {  // no link
    FileFacts facts;
    return !storage().facts(folder, /*follow=*/false, facts) && facts.is_folder();
  };
  for (const std::string& folder : {paths.shares(), paths.live()}) {
    std::vector<std::string> names;
    if (!is_own(folder) || storage().list(folder, names)) continue;
    for (const std::string& name : names) {
      if (const std::string_view its = named_aside(name); !its.empty()) {
        sweep_asides(fmt::format("{}/{}", folder, its), /*alone=*/true);
      }
    }
  }
  try {
    if (is_own(paths.checkpoints())) (void)sweep_checkpoints(paths.checkpoints());
  } catch (const InputError&) {  // told where they are used
  }
}

}  // namespace

RunDirectory::RunDirectory(const std::string& path, bool resume, const std::string& after)
    // Other ranks, which may have been started in other folders, are told of paths in it.
    : paths_{std::filesystem::absolute(path).lexically_normal().string()} {
  make_folder(path);
  FileFacts facts;
  // Before `.lock` is made: a folder that is refused stays as it was.
  if (storage().facts(paths_.lock(), /*follow=*/false, facts)) check_contents(path, resume);
  open_lock();
  lock();
  try {
    read_identity();
    check_contents(path, resume);
    if (!after.empty()) require_last(after);
    sign();
    fence_ = fence_of(paths_);
    // Before anything is read: what an earlier start that lives on would publish goes here (base/fence.h).
    sweep_run_files(paths_);
    (void)storage().remove(paths_.exit_record());
  } catch (const TakenOverError&) {
    throw;
  } catch (...) {
    if (claimed_) (void)storage().remove(paths_.owner());
    throw;
  }
}

/// Throws InputError where the folder holds anything and is not a run's to go on with.
void RunDirectory::check_contents(const std::string& said, bool resume) const {
  std::vector<std::string> names = names_in(paths_.root);
  const auto followed = paths_.followed();
  std::erase_if(names, [&](const std::string& name) {
    const std::string path = paths_.root + "/" + name;
    return path == paths_.lock() || path == paths_.owner() ||
           std::ranges::find(followed, path) != followed.end();
  });
  if (names.empty()) return;
  const bool is_run = !paths_.run.empty() || !run_of_checkpoints(paths_).empty();
  const auto refuse = [&](const std::string& why) { throw InputError({said, ""}, why); };
  if (!is_run) {
    refuse(
        fmt::format("holds {}, and no run made this folder (it has neither a run's .lock nor a checkpoint): "
                    "nothing was changed; choose another run_dir",
                    json::brief(names.front())));
  }
  if (!resume) refuse("holds an earlier run; go on with --resume, choose another run_dir, or remove it");
}

void RunDirectory::open_lock() {
  const auto refuse = [&](const std::string& why) { throw InputError({paths_.root, ""}, why); };
  const std::error_code error = storage().open(paths_.lock(), OpenFor::locking, lock_);
  if (error == std::errc::too_many_symbolic_link_levels) {
    refuse("its .lock is a link, which would be written to; remove it");
  }
  if (error == std::errc::permission_denied && is_there(paths_.lock())) {
    refuse("its .lock is of another user: go on as that user, or choose another run_dir");
  }
  if (error) refuse("the folder cannot be written: " + error.message());
  require_own_file(paths_.lock(), *lock_);
}

/// With the lock: another run may have made the folder its own until then.
void RunDirectory::read_identity() {
  FileFacts facts;
  if (const std::error_code unknown = lock_->facts(facts)) throw unreadable(paths_.lock(), unknown);
  std::string text(std::min(facts.bytes, kMostLockBytes), '\0');
  if (const std::string what = read_exactly(*lock_, 0, text.data(), text.size()); !what.empty()) {
    throw InputError({paths_.lock(), ""}, what);
  }
  paths_.run = run_in(text);
  if (paths_.run.empty() && !broken_off(text)) {
    throw InputError({paths_.root, ""},
                     "its .lock is no run's, and would be written to; choose another run_dir");
  }
}

void RunDirectory::lock() {
  const auto refuse = [&](const std::string& why) { throw InputError({paths_.root, ""}, why); };
  const std::error_code error = lock_->lock();
  if (error == std::errc::resource_unavailable_try_again) refuse_held(paths_);
  if (error == std::errc::no_lock_available || error == std::errc::function_not_supported ||
      error == std::errc::operation_not_supported || error == std::errc::invalid_argument) {
    return claim();
  }
  if (error) refuse("cannot be locked: " + error.message());
  // Removed and made again by somebody else between the two calls: the lock is on a file without a name.
  FileFacts opened, named;
  if (lock_->facts(opened) || storage().facts(paths_.lock(), /*follow=*/false, named) ||
      named.identity != opened.identity) {
    refuse("its .lock was replaced just now; is another run starting there?");
  }
}

void RunDirectory::require_last(const std::string& after) const {
  const RunHolder holder = read_holder(paths_.lock());
  if (holder.session != after) taken_over(paths_.root, holder);
}

/// Writes who holds the folder into `.lock`, behind the run's identity, which never changes and is on disk before
/// anything else is.
void RunDirectory::sign() {
  constexpr unsigned kAlone = 0600;
  const std::int64_t number = start_number(read_holder(paths_.lock())) + 1;
  paths_.session = unique_name(fmt::format("{}{}", kStartMark, number));
  const std::string mine = text_of(this_process(paths_.session));
  (void)lock_->set_mode(kAlone);  // some file systems have no modes
  std::error_code error;
  if (paths_.run.empty()) {
    paths_.run = run_of_checkpoints(paths_);
    if (paths_.run.empty()) paths_.run = unique_name("run");
    error = lock_->cut(0);
    if (!error) error = write_all(*lock_, fmt::format("{}{}\n", kRunMark, paths_.run));
    if (!error) error = lock_->sync();
    if (!error) sync_folder(paths_.root);
  } else {
    std::string first(kRunMark.size() + paths_.run.size() + 1, '\0');
    std::size_t got = 0;
    error = lock_->read(first.data(), first.size(), got);  // moves to its end
    if (!error && got != first.size()) error = std::make_error_code(std::errc::io_error);
    if (!error) error = lock_->cut(first.size());
  }
  if (!error) error = write_all(*lock_, mine);
  if (error) throw InputError({paths_.root, ""}, "the folder cannot be written: " + error.message());
}

void RunDirectory::claim() {
  const std::string mine = text_of(this_process(paths_.session));
  if (is_there(paths_.owner())) {
    const RunHolder holder = read_holder(paths_.owner());
    if (!has_ended(holder)) {
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
  try {
    if (claimed_) (void)storage().remove(paths_.owner());
  } catch (const TakenOverError&) {  // then it is the other's
  }
}

namespace {

/// Throws TakenOverError.
std::error_code look_for_taker(const RunPaths& paths) {
  if (paths.session.empty()) return {};
  RunHolder holder;
  if (const std::error_code unknown = read_holder(paths.lock(), holder)) return unknown;
  if (holder.session != paths.session) taken_over(paths.root, holder);
  return {};
}

}  // namespace

void check_session(const RunPaths& paths) {
  if (const std::error_code unknown = look_for_taker(paths)) throw unreadable(paths.lock(), unknown);
}

std::unique_ptr<Fence> fence_of(const RunPaths& paths) {
  if (paths.session.empty()) return nullptr;
  return std::make_unique<Fence>(paths.root, [paths] { return look_for_taker(paths); });
}

std::optional<bool> record_exit(const RunPaths& paths, const ExitRecord& record) noexcept {
  try {
    // Made whole under a name of its own, then linked: that fails where exit.json is, so that the first one
    // wins and nobody ever reads half of it.
    const std::string text = json::write(record).dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
    const std::string aside = name_aside(paths.exit_record());
    write_new_file(aside, {text});
    const std::error_code error = storage().link(aside, paths.exit_record());
    (void)storage().remove(aside);
    if (error && is_there(paths.exit_record())) return false;
    if (error) write_new_file(paths.exit_record(), {text});  // a file system without hard links
    return true;
  } catch (const TakenOverError&) {
    return std::nullopt;
  } catch (...) {
    return true;
  }
}

}  // namespace stagecraft
