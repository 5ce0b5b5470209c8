#include "engine/records/view/run_marks.h"

#include "base/error.h"
#include "base/files.h"

#include <algorithm>
#include <charconv>
#include <optional>

namespace stagecraft {
namespace {

constexpr std::string_view kFolder = "step-";

/// The step of a checkpoint's folder, "step-00000100".
std::optional<std::int64_t> step_of(std::string_view name) {
  if (!name.starts_with(kFolder)) return std::nullopt;
  name.remove_prefix(kFolder.size());
  std::int64_t step = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
  if (error != std::errc{} || end != name.data() + name.size()) return std::nullopt;
  return step;
}

void forget_oldest(std::vector<std::int64_t>& steps) {
  if (steps.size() > 2 * RunMarks::kMost)
    steps.erase(steps.begin(), steps.end() - static_cast<std::ptrdiff_t>(RunMarks::kMost));
}

}  // namespace

/// Lines of engine/run/train/trainer.cpp: "[time] [rank 0: stage 0] [info] ...".
void RunMarks::take(std::string_view line) {
  constexpr std::string_view kInfo = "] [info] ";
  const std::size_t info = line.find(kInfo);
  if (info == std::string_view::npos) return;
  line.remove_prefix(info + kInfo.size());
  constexpr std::string_view kWritten = " written", kState = "state of step ", kRank = "rank 0";
  if (begins_again_) {
    restarts_.push_back(0);
    begins_again_ = false;
    forget_oldest(restarts_);
    if (line.starts_with(kState)) {
      line.remove_prefix(kState.size());
      (void)std::from_chars(line.data(), line.data() + line.size(), restarts_.back());
      return;
    }
  }
  if (line.ends_with(kWritten)) {
    line.remove_suffix(kWritten.size());
    if (const auto step = step_of(line.substr(line.rfind('/') + 1))) written_.push_back(*step);
    forget_oldest(written_);
  } else if (line.starts_with(kRank) && line.find(" over ") != std::string_view::npos) {
    begins_again_ = begun_;
    begun_ = true;
  }
}

void RunMarks::follow(std::size_t most_bytes) {
  const auto line = [this](std::string_view text) { take(text); };
  if (log_.read(most_bytes, line) == TailedFile::Found::other) {
    begun_ = begins_again_ = false;
    restarts_.clear();
    written_.clear();
    (void)log_.read(most_bytes, line);
  }
  kept_.clear();
  try {
    if (!is_folder(paths_.checkpoints())) return;
    for (const std::string& name : names_in(paths_.checkpoints())) {
      if (const auto step = step_of(name)) kept_.push_back(*step);
    }
  } catch (const InputError&) {
    // removed meanwhile
  }
}

std::vector<RunMarks::Checkpoint> RunMarks::checkpoints() const {
  std::vector<std::int64_t> steps = written_;
  steps.insert(steps.end(), kept_.begin(), kept_.end());
  std::sort(steps.begin(), steps.end());
  steps.erase(std::unique(steps.begin(), steps.end()), steps.end());
  if (steps.size() > kMost) steps.erase(steps.begin(), steps.end() - static_cast<std::ptrdiff_t>(kMost));
  std::vector<Checkpoint> checkpoints;
  for (const std::int64_t step : steps) {
    checkpoints.push_back({step, std::find(kept_.begin(), kept_.end(), step) != kept_.end()});
  }
  return checkpoints;
}

}  // namespace stagecraft
