// Every kind of write that a run makes, by a start that is stopped at its n-th call of the disk, for every n, while
// another one takes the directory. What whole runs do is fencing_test.cpp's.

#include "base/error.h"
#include "base/json.h"
#include "engine/records/metrics/exit_record.h"
#include "test/engine/taken_over.h"

#include <fmt/format.h>

#include <exception>

using namespace stagecraft;
using test::check_untouched;
using test::Contents;
using test::contents_of;
using test::DiskFault;
using test::kElsewhere;
using test::kHere;
using test::SimulatedDisk;
using test::take_over;

namespace {

void save(const RunPaths& paths, std::int64_t step) {
  const std::string folder = paths.checkpoints();
  (void)sweep_checkpoints(folder);
  const std::string aside = begin_checkpoint(folder, step);
  write_new_file(aside + "/layer.safetensors", {fmt::format("the state of step {}", step)});
  sync_folder(aside);
  Manifest manifest;
  manifest.run = paths.run;
  manifest.step = step;
  manifest.training = manifest.pipeline = Json::object();
  write_new_file(aside + "/" + kManifestName, {manifest_text(manifest)});
  (void)publish_checkpoint(folder, aside, step);
  manifest.validation_owed = true;
  write_file_atomically(checkpoint_path(folder, step) + "/" + kManifestName, manifest_text(manifest),
                        Links::replace);
  (void)remove_older_checkpoints(folder, 1, paths.run);
}

/// What the ranks of a run write, in its order.
void write_all_there_is(const RunPaths& paths) {
  for (const std::string& folder : {paths.logs(), paths.checkpoints(), paths.live(), paths.shares()}) {
    make_folder(folder);
  }
  for (const std::string& file : {paths.profile(), paths.config(), paths.plan()}) {
    write_file_atomically(file, "{}", Links::replace);
  }
  const StoredFilePtr log = open_to_append(paths.log(Rank{0}));
  MetricsWriter metrics(paths.metrics());
  const std::string newest = newest_checkpoint(paths.checkpoints());
  const std::int64_t before = newest.empty() ? 0 : read_manifest(newest).step;
  for (std::int64_t step = before + 1; step < before + 4; ++step) {
    MetricsRecord record;
    record.step = step;
    metrics.append(record);
    if (const std::error_code error = write_all(*log, "a line\n")) throw unwritable("log", error);
    for (const Rank rank : {Rank{0}, Rank{1}, Rank{2}}) {
      write_file_atomically(paths.live(rank), fmt::format("{}", step), Links::replace);
      write_file_atomically(paths.shares(rank), fmt::format("{}", step), Links::replace);
    }
    metrics.sync();
    save(paths, step);
  }
  write_file_atomically(paths.summary(), "{}", Links::replace);
  write_file_atomically(paths.timeline(), "{}", Links::replace);
  (void)remove_tree(paths.live());
  if (!record_exit(paths, {Rank{0}, {}, "the end", "why", 4})) throw TakenOverError("no exit.json");
}

/// Whether it came to its end.
bool first_start(SimulatedDisk& disk) {
  const StorageInstead instead(disk);
  RunPaths paths;
  try {
    try {
      const RunDirectory directory(kHere, /*resume=*/true);
      paths = directory.paths();
      test::take_up(paths);
      write_all_there_is(paths);
    } catch (const InputError&) {  // what it wrote aside is gone
      check_session(paths);
      throw;
    }
  } catch (const TakenOverError&) {
    return false;
  }
  return true;
}

}  // namespace

TEST_CASE("no write of a start that another one took over has any effect", "[fenced_writes]") {
  SimulatedDisk before;
  test::share(before);
  REQUIRE(first_start(before));  // so that there is something of each kind
  const auto counted = before.copy();
  counted->set_fault({});
  REQUIRE(first_start(*counted));
  const std::int64_t calls = counted->calls();
  REQUIRE(calls > 300);
  int stopped = 0, tried = 0;
  for (std::int64_t call = 0; call < calls; ++call) {
    INFO(fmt::format("call {} of {}", call, calls));
    const auto disk = before.copy();
    test::share(*disk);
    std::unique_ptr<RunDirectory> taker;
    Contents theirs;
    std::string newest;
    DiskFault fault{DiskFault::Kind::stopped, call};
    fault.meanwhile = [&] {
      taker = take_over();
      theirs = contents_of(*disk);
      newest = newest_checkpoint(kElsewhere + "/checkpoints");
      if (!newest.empty()) newest.replace(0, kElsewhere.size(), kHere);
    };
    disk->set_fault(fault);
    const bool ended = first_start(*disk);
    REQUIRE(taker);
    // One that had not taken it yet took it over in its turn.
    if (disk->read(kHere + "/.lock").find(taker->paths().session) == std::string::npos) continue;
    ++tried;
    stopped += ended ? 0 : 1;
    check_untouched(theirs, contents_of(*disk), newest);
    taker.reset();
    disk->set_fault({});
    REQUIRE(first_start(*disk));
    for (const std::string& path : disk->files()) {
      INFO(path);
      CHECK(path.find(".part") == std::string::npos);
    }
  }
  CHECK(tried > calls * 9 / 10);
  CHECK(stopped > tried * 9 / 10);
}
