#include "cli/output_file.h"

#include "base/error.h"
#include "base/file_kind.h"
#include "base/files.h"
#include "base/storage.h"
#include "cli/output.h"
#include "engine/records/metrics/run_paths.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <optional>
#include <system_error>

namespace stagecraft::cli {
namespace {

namespace fs = std::filesystem;

/// Whether a run writes it into its folder, there or not yet, by the first name below that.
bool is_record(const std::string& name) {
  const RunPaths run{""};
  const std::string path = "/" + name;
  const auto all = {run.config(),      run.plan(),        run.metrics(), run.timeline(), run.summary(),
                    run.exit_record(), run.checkpoints(), run.logs(),    run.lock(),     run.owner()};
  return std::ranges::find(all, path) != all.end();
}

bool is_run(const fs::path& folder) {
  const RunPaths run{folder.string()};
  return is_there(run.lock()) && (is_there(run.metrics()) || is_there(run.checkpoints()));
}

void refuse_record(const std::string& path) {
  std::error_code error;
  const fs::path whole = fs::weakly_canonical(fs::absolute(path, error), error);
  if (error) return;  // whoever writes it says why
  fs::path below = whole.filename();
  for (fs::path folder = whole.parent_path();; folder = folder.parent_path()) {
    if (is_record(below.begin()->string()) && is_run(folder)) {
      throw InputError({path, ""},
                       fmt::format("is a record of the run in {}: expected a path that the run does "
                                   "not write",
                                   folder.string()));
    }
    if (folder == folder.parent_path()) return;
    below = folder.filename() / below;
  }
}

/// What stands at the path, unless that is nothing, or no file: pipes and devices take anything.
std::optional<FileFacts> file_at(const std::string& path) {
  FileFacts facts;
  if (storage().facts(path, /*follow=*/true, facts) || !facts.is_file()) return std::nullopt;
  return facts;
}

void refuse_input(const std::string& path, const std::string& input) {
  const std::optional<FileFacts> there = file_at(path), read = file_at(input);
  if (!there || !read || there->identity != read->identity) return;
  throw InputError({path, ""},
                   "is the file that is read: expected another name, since the two say different things");
}

void refuse_other_kind(const std::string& path, const std::string& kind) {
  const std::optional<FileFacts> there = file_at(path);
  if (!there || there->bytes == 0) return;
  const std::string its = kind_of_contents(read_file(path));
  if (kind == its) return;
  throw InputError({path, ""}, fmt::format("is there already, and is {}, so {} takes its place: expected "
                                           "another name",
                                           its.empty() ? "something else" : "a " + its,
                                           kind.empty() ? "nothing else" : "no " + kind));
}

/// A name that promises what no command writes would keep a picture that no program opens.
void refuse_ending(const std::string& path, const std::string& kind) {
  constexpr std::array kForeign{".png", ".jpg",  ".jpeg", ".gif", ".webp",
                                ".bmp", ".tiff", ".pdf",  ".eps", ".ps"};
  const fs::path name(path);
  std::string ending = name.extension().string();
  std::ranges::transform(ending, ending.begin(), [](unsigned char c) { return std::tolower(c); });
  if (std::ranges::find(kForeign, ending) == kForeign.end()) return;
  const std::string ours = kind == "picture" ? ".svg" : kind == "web page" ? ".html" : "";
  throw InputError(
      {path, ""},
      fmt::format(
          "a name in {} is for another format than is written: expected {}", ending,
          ours.empty() ? "another name" : "one such as " + fs::path(name).replace_extension(ours).string()));
}

void refuse_what_is_there(const std::string& path, const std::string& kind, const std::string& input) {
  refuse_ending(path, kind);
  refuse_record(path);
  if (!input.empty()) refuse_input(path, input);
  refuse_other_kind(path, kind);
}

}  // namespace

void write_output(const std::string& path, std::string_view contents, const std::string& input) {
  refuse_what_is_there(path, kind_of_contents(contents), input);
  write_file_atomically(path, contents);
}

void write_json_output(const std::string& path, const Json& json, const std::string& input) {
  refuse_what_is_there(path, kind_of(json), input);
  write_json_file(path, json);
}

void print_written(const std::string& path, std::string_view what) {
  if (file_at(path)) print(fmt::format("written to {}: {}\n", path, what));
}

void require_output(const std::string& path, const std::string& kind) {
  if (!path.empty()) refuse_what_is_there(path, kind, "");
}

}  // namespace stagecraft::cli
