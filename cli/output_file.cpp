#include "stagecraft/cli/output_file.h"

#include "stagecraft/base/error.h"
#include "stagecraft/base/files.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <system_error>

namespace stagecraft::cli {
namespace {

namespace fs = std::filesystem;

/// What a run writes into its folder, there or not yet (engine/run/run_dir.h).
constexpr std::string_view kRecords[] = {"config.json",  "plan.json", "metrics.jsonl", "timeline.json",
                                         "summary.json", "exit.json", ".lock",         ".owner",
                                         "checkpoints",  "logs"};

bool is_run(const fs::path& folder) {
  return is_there((folder / ".lock").string()) &&
         (is_there((folder / "metrics.jsonl").string()) || is_there((folder / "checkpoints").string()));
}

void refuse_record(const std::string& path) {
  std::error_code error;
  const fs::path whole = fs::weakly_canonical(fs::absolute(path, error), error);
  if (error) return;  // whoever writes it says why
  fs::path below = whole.filename();
  for (fs::path folder = whole.parent_path();; folder = folder.parent_path()) {
    if (std::ranges::find(kRecords, below.begin()->string()) != std::end(kRecords) && is_run(folder)) {
      throw InputError({path, ""},
                       fmt::format("is a record of the run in {}: expected a path that the run does "
                                   "not write",
                                   folder.string()));
    }
    if (folder == folder.parent_path()) return;
    below = folder.filename() / below;
  }
}

}  // namespace

void write_output(const std::string& path, std::string_view contents) {
  refuse_record(path);
  write_file_atomically(path, contents);
}

void write_json_output(const std::string& path, const Json& json) {
  refuse_record(path);
  write_json_file(path, json);
}

}  // namespace stagecraft::cli
