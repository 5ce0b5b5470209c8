#include "engine/run/run_dir.h"

#include "engine/run/metrics.h"
#include "engine/run/progress.h"
#include "schedules/base/error.h"
#include "test/support/catch.h"
#include "test/support/command.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

using namespace stagecraft;
using test::ScratchFolder;

namespace {

std::string complaint(const std::string& path, bool resume) {
  try {
    const RunDirectory directory(path, resume);
    return "";
  } catch (const InputError& error) {
    return error.what();
  }
}

using stagecraft::test::says;

MetricsRecord record(std::int64_t step, bool validation = false) {
  MetricsRecord r;
  r.step = step;
  r.validation = validation;
  r.loss = 0.1 * static_cast<double>(step);
  return r;
}

}  // namespace

TEST_CASE("a run directory is made, locked while used, and free again afterwards", "[run_dir]") {
  const ScratchFolder folder;
  const std::string path = folder.path("runs/a/b");
  {
    const RunDirectory directory(path, false);
    CHECK(says(complaint(path, false), "is in use by another run, process"));
    CHECK(says(complaint(path, true), "is in use by another run, process"));
  }
  CHECK(complaint(path, false).empty());  // the lock file alone is no run
}

TEST_CASE("one that holds a run is refused without --resume, and taken with it", "[run_dir]") {
  const ScratchFolder folder;
  folder.write("metrics.jsonl", "");
  CHECK(says(complaint(folder.path(""), false), "--resume"));
  CHECK(complaint(folder.path(""), true).empty());
  const ScratchFolder empty;
  CHECK(complaint(empty.path(""), true).empty());
}

TEST_CASE("a file in its place, or a place that is none, is said", "[run_dir]") {
  const ScratchFolder folder;
  const std::string file = folder.write("file", "x");
  CHECK(says(complaint(file, false), "cannot be made"));
  CHECK(says(complaint(file + "/below", false), "cannot be made"));
  CHECK(says(complaint("/proc/stagecraft", false), "/proc/stagecraft: "));
}

TEST_CASE("of several failing ranks the first writes exit.json", "[run_dir]") {
  const ScratchFolder folder;
  const RunPaths paths{folder.path("")};
  CHECK(record_exit(paths, {Rank{1}, {StageId{1}}, "step 12", "the disk is gone", 2}));
  CHECK_FALSE(record_exit(paths, {Rank{0}, {StageId{0}}, "step 12", "rank 1 failed", 4}));
  const Json json = json::parse_file(paths.exit_record());
  CHECK(json["rank"] == 1);
  CHECK(json["stages"] == Json::array({1}));
  CHECK(json["action"] == "step 12");
  CHECK(json["message"] == "the disk is gone");
  CHECK(json["code"] == 2);
  std::size_t files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder.path(""))) ++files;
  CHECK(files == 1);  // nothing left aside
  const RunDirectory again(folder.path(""), true);
  CHECK_FALSE(std::filesystem::exists(paths.exit_record()));
}

TEST_CASE("a failure that cannot be recorded is still the first to speak", "[run_dir]") {
  CHECK(record_exit(RunPaths{"/proc/nowhere"}, {Rank{0}, {}, "start-up", "why", 1}));
}

TEST_CASE("metrics read back as written, infinities and all", "[metrics]") {
  const ScratchFolder folder;
  const std::string path = folder.path("metrics.jsonl");
  {
    MetricsWriter writer(path);
    MetricsRecord first = record(1);
    first.loss = 0.1 + 0.2;  // needs all its digits
    first.gradient_norm = 1.0 / 3;
    writer.append(first);
    MetricsRecord diverged = record(2);
    diverged.loss = std::numeric_limits<double>::infinity();
    writer.append(diverged);
  }
  const auto records = read_metrics(path);
  REQUIRE(records.size() == 2);
  CHECK(records[0].loss == 0.1 + 0.2);
  CHECK(records[0].gradient_norm == 1.0 / 3);
  CHECK_FALSE(records[0].tokens_per_second.has_value());
  CHECK(std::isnan(records[1].loss));
}

TEST_CASE("metrics are cut back to a step, a broken last line goes", "[metrics]") {
  const ScratchFolder folder;
  const std::string path = folder.path("metrics.jsonl");
  {
    MetricsWriter writer(path);
    for (const auto& [step, validation] : {std::pair{1, false}, {2, false}, {2, true}, {3, false}}) {
      writer.append(record(step, validation));
    }
  }
  std::ofstream(path, std::ios::app) << R"({"step": 4, "los)";
  CHECK(read_metrics(path).size() == 4);
  cut_metrics_back(path, 2, false);
  CHECK(read_metrics(path).size() == 3);
  cut_metrics_back(path, 2, true);  // the validation after step 2 will be made again
  CHECK(read_metrics(path).size() == 2);
  cut_metrics_back(path, 0, false);
  CHECK(read_metrics(path).empty());
  cut_metrics_back(folder.path("missing"), 0, false);
}

TEST_CASE("a broken line in the middle of metrics is an error with its number", "[metrics]") {
  const ScratchFolder folder;
  const std::string path = folder.write("metrics.jsonl", "{\"step\n{\"step\": 1}\n");
  CHECK_THROWS_WITH(read_metrics(path), Catch::Contains("line 1"));
}

TEST_CASE("progress shows the share and what is left", "[progress]") {
  CHECK(progress_text(0, 0, 100, Seconds{0}) == "[>                             ] 0/100  0.0 %");
  const std::string half = progress_text(0, 50, 100, Seconds{10});
  CHECK(says(half, "[===============>              ] 50/100  50.0 %"));
  CHECK(says(half, "10.0 s left"));
  // After a resume only this session's steps tell the speed.
  CHECK(says(progress_text(50, 75, 100, Seconds{5}), "5.0 s left"));
  CHECK_FALSE(says(progress_text(0, 100, 100, Seconds{10}), "left"));
}
