// Files of a run directory beside each other, as {"exit.json": ..., "logs/rank-0.log": "...", "live/rank-0.json": ...}: a
// string is the file's bytes, anything else its JSON. `watch` follows the folder, and `report` reads it. The plan is a
// good one of two stages (plan_json changes plans).

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "engine/records/view/page.h"
#include "engine/records/view/run_view.h"
#include "test/fuzz/json_changes.h"
#include "test/fuzz/judge_run.h"
#include "test/fuzz/scratch_folder.h"
#include "test/fuzz/target.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace stagecraft::fuzz {
namespace {

constexpr std::array kFiles{".lock",          "config.json",   "exit.json",        "metrics.jsonl",
                            "summary.json",   "timeline.json", "live/rank-0.json", "live/rank-1.json",
                            "logs/rank-0.log"};

class RunFolder {
 public:
  RunFolder() {
    for (const char* name : {"live", "logs", "checkpoints", "checkpoints/step-00000003"}) {
      make_folder(folder_.path(name));
    }
    (void)folder_.write("plan.json", json::write(empty_run().plan).dump());
  }
  void fill(const Json& files) const {
    for (const char* name : kFiles) {
      folder_.remove(name);
      if (!files.contains(name)) continue;
      const Json& file = files[name];
      (void)folder_.write(name, file.is_string() ? file.get<std::string>() : file.dump());
    }
  }
  [[nodiscard]] std::string path() const { return folder_.path(); }

 private:
  ScratchFolder folder_;
};

}  // namespace
}  // namespace stagecraft::fuzz

FUZZ_MUTATOR(run_dir) { return stagecraft::fuzz::mutate_json(data, size, max_size, seed); }

FUZZ_TARGET(run_dir) {
  using namespace stagecraft;
  static const fuzz::RunFolder folder;
  try {
    const Json files = json::parse_text(std::string(data, data + size), "x");
    if (!files.is_object()) return 0;
    folder.fill(files);
  } catch (const InputError&) {
    return 0;
  }
  std::vector<RunView> views;
  views.emplace_back(folder.path());
  constexpr std::size_t kAtOnce = 256;
  for (int looks = 0; looks < 3; ++looks) (void)views.front().follow(kAtOnce);
  fuzz::require(page_of(document_of(views, /*live=*/true)).ends_with("</html>\n"), "a page ends");
  try {
    const RunFiles run = read_run(folder.path());
    fuzz::accepted();
    if (fuzz::choice_of(data, size) % fuzz::kReportOneOf == 0) fuzz::judge(run);
  } catch (const InputError&) {
  }
  return 0;
}
