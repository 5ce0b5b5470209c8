#pragma once

// A start that takes a run's directory while another one is stopped, and what may have changed when that one has gone on.

#include "base/files.h"
#include "engine/records/metrics/manifest.h"
#include "engine/records/metrics/metrics.h"
#include "engine/run/save/checkpoint_folder.h"
#include "engine/run/save/run_dir.h"
#include "test/support/catch.h"
#include "test/support/simulated_disk.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>

namespace stagecraft::test {

inline const std::string kHere = "/runs/one", kElsewhere = "/other/one";  ///< the same folder

/// Another machine has the disk, too, and locks of its own.
inline void share(SimulatedDisk& disk) {
  disk.set_locks_per_machine();
  disk.mount("/runs", "/other");
}

using Contents = std::map<std::string, std::string>;

/// Of the run's directory, but for names aside, which count for nothing, and empty folders.
inline Contents contents_of(const SimulatedDisk& disk) {
  Contents contents;
  for (const std::string& path : disk.files()) {
    if (!path.starts_with(kHere) || path.ends_with('/') || path.find(".part") != std::string::npos) continue;
    contents[path] = disk.read(path);
  }
  return contents;
}

/// What a start does with its directory before it trains.
inline void take_up(const RunPaths& paths) {
  const std::string newest = newest_checkpoint(paths.checkpoints());
  if (!newest.empty()) {
    const Manifest manifest = read_manifest(newest);
    (void)cut_metrics_back(paths.metrics(), manifest.step, manifest.validation_owed);
  } else if (is_there(paths.metrics())) {
    const std::string earlier = paths.root + "/metrics.earlier-9.jsonl";
    if (const std::error_code error = storage().rename(paths.metrics(), earlier))
      throw unwritable(earlier, error);
  }
}

inline std::unique_ptr<RunDirectory> take_over() {
  auto directory = std::make_unique<RunDirectory>(kElsewhere, /*resume=*/true);
  take_up(directory->paths());
  return directory;
}

/// A checkpoint is one thing, with all its files.
inline std::string thing_of(const std::string& path) {
  const std::string checkpoints = kHere + "/checkpoints/";
  return path.starts_with(checkpoints) ? path.substr(0, path.find('/', checkpoints.size())) : path;
}

/// The one call that the first start was at may still have its effect: a thing that is gone, or empty, or has another
/// name. Nothing has other contents, and the newest checkpoint is there. A line of a log, or of the first start's own
/// metrics, may have been under way.
inline void check_untouched(const Contents& theirs, const Contents& now, const std::string& newest) {
  std::set<std::string> gone, come;
  Contents lost;
  for (const auto& [path, text] : theirs) {
    const auto found = now.find(path);
    if (found == now.end()) {
      gone.insert(thing_of(path));
      lost[path] = text;
      continue;
    }
    INFO(path);
    if (path.find("/logs/") != std::string::npos) continue;
    if (path.find("/metrics.earlier-") !=
        std::string::npos) {  // the first start's own, which it may have open
      CHECK(found->second.starts_with(text));
    } else {
      CHECK(found->second == text);
    }
  }
  for (const auto& [path, text] : now) {
    if (theirs.contains(path)) continue;
    INFO(path);
    const bool moved = std::any_of(lost.begin(), lost.end(),
                                   [&, &its = text](const auto& old) { return old.second == its; });
    CHECK((text.empty() || moved));
    if (!moved) come.insert(thing_of(path));
  }
  CHECK(gone.size() + come.size() <= 1);
  if (!newest.empty()) CHECK_FALSE(gone.contains(thing_of(newest)));
}

}  // namespace stagecraft::test
