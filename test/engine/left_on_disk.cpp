#include "test/engine/left_on_disk.h"

#include "engine/records/metrics/metrics.h"
#include "engine/records/metrics/run_paths.h"
#include "engine/run/save/checkpoint_folder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace stagecraft::test {
namespace {

const RunPaths kPaths{"/runs/one"};

/// Where time went is for people, and of the session's own third step; what a fault did to a run that was over is still
/// told.
bool may_differ(const std::string& path) {
  const std::string shares = kPaths.shares() + "/";
  return path == shares || (path.starts_with(shares + "rank-") && path.ends_with(".json")) ||
         path == kPaths.exit_record();
}

/// Is written behind the last checkpoint; a run that is over does not write it again.
bool is_of_the_end(const std::string& path) { return path == kPaths.summary() || path == kPaths.timeline(); }

std::vector<std::string> comparable(const Left& left) {
  std::vector<std::string> files = left.files;
  std::erase_if(files, may_differ);
  return files;
}

}  // namespace

Left left_on(SimulatedDisk& disk) {
  Left left;
  const StorageInstead instead(disk);
  for (const MetricsRecord& r : read_metrics(kPaths.metrics())) {
    left.history.push_back(
        fmt::format("{} {} {:.17g} {:.17g}", r.step, r.validation, r.loss, r.gradient_norm.value_or(0)));
  }
  const std::string checkpoint = newest_checkpoint(kPaths.checkpoints());
  for (const std::string& path : disk.files()) {
    if (path.starts_with(checkpoint) && path.ends_with(".safetensors")) left.state[path] = disk.read(path);
    // A session that began again at step 0 keeps what the one before had written of its steps. Logs are not
    // synced.
    const bool own = path.find("metrics.earlier-") != std::string::npos || path.starts_with(kPaths.logs());
    if (!own) left.files.push_back(path);
  }
  return left;
}

std::string difference(const Left& disturbed, const Left& undisturbed) {
  if (disturbed.history != undisturbed.history) {
    return fmt::format("its history is\n{}\ninstead of\n{}", fmt::join(disturbed.history, "\n"),
                       fmt::join(undisturbed.history, "\n"));
  }
  if (disturbed.state != undisturbed.state) return "its last checkpoint has other bits";
  const std::vector<std::string> mine = comparable(disturbed);
  std::vector<std::string> its = comparable(undisturbed);
  std::erase_if(its, [&](const std::string& path) {
    return is_of_the_end(path) && std::find(mine.begin(), mine.end(), path) == mine.end();
  });
  if (mine == its) return "";
  return fmt::format("its files are\n{}\ninstead of\n{}", fmt::join(mine, "\n"), fmt::join(its, "\n"));
}

}  // namespace stagecraft::test
