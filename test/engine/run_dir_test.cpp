#include "engine/run/save/run_dir.h"

#include "base/error.h"
#include "base/json.h"
#include "engine/records/metrics/manifest.h"
#include "engine/records/metrics/metrics.h"
#include "engine/records/metrics/run_holder.h"
#include "engine/run/show/printing.h"
#include "engine/run/show/progress.h"
#include "test/support/catch.h"
#include "test/support/command.h"
#include "test/support/simulated_disk.h"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <unistd.h>

using namespace stagecraft;
using test::ScratchFolder;

namespace {

std::string run_dir_refusal(const std::string& path, bool resume) {
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
    CHECK(says(run_dir_refusal(path, false), "is in use by another run, process"));
    CHECK(says(run_dir_refusal(path, true), "is in use by another run, process"));
  }
  CHECK(run_dir_refusal(path, false).empty());  // the lock file alone is no run
}

TEST_CASE("one that holds a run is refused without --resume, and taken with it", "[run_dir]") {
  const ScratchFolder folder;
  CHECK(run_dir_refusal(folder.path(""), true).empty());  // an empty one
  folder.write("metrics.jsonl", "");
  CHECK(says(run_dir_refusal(folder.path(""), false), "--resume"));
  CHECK(run_dir_refusal(folder.path(""), true).empty());
}

TEST_CASE("a folder that no run made is refused and stays as it was, whatever lies in it", "[run_dir]") {
  // Each of a run's own names, and of what is swept, as somebody else might have it.
  const std::vector<std::string> places{"config.json",
                                        "plan.json",
                                        "metrics.jsonl",
                                        "timeline.json",
                                        "summary.json",
                                        "exit.json",
                                        ".lock",
                                        "film.mkv.part",
                                        "plan.json.0123456789abcdef.part",
                                        "backup.part/x",
                                        "logs/rank-0.log",
                                        "checkpoints/film.part",
                                        "checkpoints/step-00000100/pytorch_model.bin",
                                        "checkpoints/step-00000100.0123456789abcdef.part/x",
                                        "checkpoints/probe.0123456789abcdef.part/x"};
  for (const std::string& place : places) {
    for (const bool resume : {true, false}) {
      CAPTURE(place, resume);
      test::SimulatedDisk disk;
      disk.write("/dl/" + place, "mine");
      const StorageInstead instead(disk);
      const std::string said = run_dir_refusal("/dl", resume);
      CHECK(says(said, "/dl: "));
      CHECK((says(said, "no run made this folder") || says(said, ".lock is no run's")));
      CHECK(disk.files() == std::vector<std::string>{"/dl/" + place});
      CHECK(disk.read("/dl/" + place) == "mine");
    }
  }
  CHECK(says(run_dir_refusal("/", true), "no run made this folder"));
}

TEST_CASE("what following leaves may be there before the run", "[run_dir]") {
  test::SimulatedDisk disk;
  disk.write("/run/tensorboard/events", "theirs");
  disk.write("/run/follow/tensorboard.json", "theirs");
  const StorageInstead instead(disk);
  { const RunDirectory directory("/run", false); }
  CHECK(disk.read("/run/tensorboard/events") == "theirs");
  CHECK(disk.read("/run/follow/tensorboard.json") == "theirs");
}

TEST_CASE("a run's folder is known by its .lock, or by a whole checkpoint", "[run_dir]") {
  test::SimulatedDisk disk;
  const StorageInstead instead(disk);
  std::string run;
  {
    const RunDirectory directory("/run", false);
    run = directory.paths().run;
    CHECK(disk.read("/run/.lock").starts_with("Stagecraft " + run + "\n"));
  }
  disk.write("/run/config.json", "{}");
  {
    const RunDirectory again("/run", true);
    CHECK(again.paths().run == run);
  }
  // A power cut may leave any beginning of a first line, in a folder that holds nothing else yet.
  for (std::size_t kept = 0; kept < 30; ++kept) {
    test::SimulatedDisk cut;
    const StorageInstead second(cut);
    cut.write("/run/.lock", ("Stagecraft " + run).substr(0, kept));
    CHECK(run_dir_refusal("/run", false).empty());
  }
  // `.lock` was lost, as where only plain names are copied.
  test::SimulatedDisk copied;
  Manifest manifest;
  manifest.run = run;
  manifest.training = manifest.pipeline = Json::object();
  copied.write("/run/checkpoints/step-00000004/manifest.json", manifest_text(manifest));
  const StorageInstead third(copied);
  const RunDirectory from_checkpoint("/run", true);
  CHECK(from_checkpoint.paths().run == run);
}

TEST_CASE("the lock is for its user alone, and who holds it is said as it is", "[run_dir]") {
  const ScratchFolder folder;
  const std::string path = folder.path("run"), lock = path + "/.lock";
  { const RunDirectory directory(path, false); }
  const auto mode = [&] { return std::filesystem::status(lock).permissions(); };
  using std::filesystem::perms;
  CHECK(mode() == (perms::owner_read | perms::owner_write));
  std::filesystem::permissions(lock, perms::owner_all | perms::others_read);
  StoredFilePtr stranger;
  REQUIRE_FALSE(storage().open(lock, OpenFor::reading, stranger));
  REQUIRE_FALSE(stranger->lock());
  // The run that `.lock` names has ended.
  std::string text = test::read_text_file(lock);
  const std::size_t number = text.find('\n') + 1;
  text.replace(number, text.find(' ', number) - number, "999999999");
  std::ofstream(lock) << text;
  const std::string said = run_dir_refusal(path, true);
  CHECK(says(said, "its .lock is held by some process, but not by the run that it names (process 999999999"));
  stranger.reset();
  CHECK(run_dir_refusal(path, true).empty());
  CHECK(mode() == (perms::owner_read | perms::owner_write));
  test::SimulatedDisk disk;
  const StorageInstead instead(disk);
  { const RunDirectory directory("/run", false); }
  disk.set_owner("/run/.lock", ::geteuid() + 1);
  CHECK(says(run_dir_refusal("/run", true), "/run/.lock: belongs to user "));
}

TEST_CASE("a file in its place, or a place that is none, is said", "[run_dir]") {
  const ScratchFolder folder;
  const std::string file = folder.write("file", "x");
  CHECK(says(run_dir_refusal(file, false), "cannot be made"));
  CHECK(says(run_dir_refusal(file + "/below", false), "cannot be made"));
  CHECK(says(run_dir_refusal("/proc/stagecraft", false), "/proc/stagecraft: "));
}

TEST_CASE("a lock that is a link to somebody's file is refused, and the file stays as it is", "[run_dir]") {
  const ScratchFolder folder;
  const std::string precious = folder.write("precious", "all my work");
  const std::string run = folder.path("run");
  std::filesystem::create_directory(run);
  SECTION("symbolic") {
    std::filesystem::create_symlink(precious, run + "/.lock");
    CHECK(says(run_dir_refusal(run, false), "its .lock is a link"));
  }
  SECTION("hard") {
    std::filesystem::create_hard_link(precious, run + "/.lock");
    CHECK(says(run_dir_refusal(run, false), ".lock: has 2 names (hard links)"));
  }
  CHECK(test::read_text_file(precious) == "all my work");
}

TEST_CASE("metrics are not written through a link", "[metrics]") {
  const ScratchFolder folder;
  const std::string precious = folder.write("precious", "mine");
  std::filesystem::create_symlink(precious, folder.path("metrics.jsonl"));
  CHECK_THROWS_WITH(MetricsWriter(folder.path("metrics.jsonl")),
                    Catch::Matchers::ContainsSubstring("is a link"));
  CHECK(test::read_text_file(precious) == "mine");
}

TEST_CASE("what a killed process was writing is gone when the directory is taken again", "[run_dir]") {
  const ScratchFolder folder;
  CHECK(run_dir_refusal(folder.path(""), false).empty());
  folder.write("metrics.jsonl", "");
  folder.write("plan.json.0123456789abcdef.part", "half");
  folder.write("film.0123456789abcdef.part", "mine");
  folder.write("plan.json.part", "mine");
  CHECK(run_dir_refusal(folder.path(""), true).empty());
  CHECK_FALSE(std::filesystem::exists(folder.path("plan.json.0123456789abcdef.part")));
  CHECK(std::filesystem::exists(folder.path("film.0123456789abcdef.part")));
  CHECK(std::filesystem::exists(folder.path("plan.json.part")));
}

TEST_CASE("where the file system has no locks, a file keeps the second run out until the first is gone",
          "[run_dir]") {
  test::SimulatedDisk disk;
  disk.set_locks(false);
  const StorageInstead instead(disk);
  {
    const RunDirectory first("/run", false);
    const std::string what = run_dir_refusal("/run", false);
    CHECK(says(what, "is in use by another run, process " + std::to_string(::getpid())));
    CHECK(says(what, "Remove /run/.owner"));
  }
  CHECK(run_dir_refusal("/run", false).empty());
  std::string text = [&] {
    const RunDirectory again("/run", false);
    return disk.read("/run/.owner");
  }();
  // Killed: its process number is of nobody any more.
  text.replace(0, text.find(' '), "999999999");
  disk.write("/run/.owner", text);
  CHECK(run_dir_refusal("/run", false).empty());
  // On another machine, or in another container, nothing is known of it.
  text.replace(text.find("/"), 1, "?");
  disk.write("/run/.owner", text);
  CHECK(says(run_dir_refusal("/run", false), "is in use by another run, process 999999999"));
}

TEST_CASE("a directory that another start has taken meanwhile is not written to", "[run_dir]") {
  const ScratchFolder folder;
  const RunDirectory directory(folder.path("run"), false);
  CHECK_NOTHROW(check_session(directory.paths()));
  CHECK_NOTHROW(check_session({folder.path("run")}));  // a rank that holds nothing
  std::filesystem::remove(folder.path("run/.lock"));
  const RunDirectory other(folder.path("run"), true);  // on a new file, so the lock is free
  const std::string taker = fmt::format("was taken over by start 1 of the run (process {} on ", ::getpid());
  CHECK_THROWS_WITH(check_session(directory.paths()), Catch::Matchers::ContainsSubstring(taker));
  CHECK_NOTHROW(check_session(other.paths()));
  // A rank that does not hold the directory has a fence of its own, and leaves the other's exit.json alone.
  const auto fence = fence_of(directory.paths());
  CHECK(record_exit(directory.paths(), {Rank{1}, {}, "step 3", "why", 4}) == std::nullopt);
  CHECK_FALSE(std::filesystem::exists(directory.paths().exit_record()));
}

TEST_CASE("each start of a run has the next number", "[run_dir]") {
  const ScratchFolder folder;
  std::string last;
  for (std::int64_t number = 1; number < 12; ++number) {
    const RunDirectory directory(folder.path("run"), true, last);
    last = directory.paths().session;
    CHECK(start_number(read_holder(directory.paths().lock())) == number);
  }
  CHECK_THROWS_WITH(RunDirectory(folder.path("run"), true, "start-10.0123456789abcdef"),
                    Catch::Matchers::ContainsSubstring("was taken over by start 11 of the run"));
  // Of an earlier version.
  std::string text = test::read_text_file(folder.path("run/.lock"));
  text.replace(text.rfind(' ') + 1, std::string::npos, "session.0123456789abcdef\n");
  folder.write("run/.lock", text);
  const RunDirectory directory(folder.path("run"), true);
  CHECK(start_number(read_holder(directory.paths().lock())) == 1);
}

TEST_CASE("of several failing ranks the first writes exit.json", "[run_dir]") {
  const ScratchFolder folder;
  CHECK(run_dir_refusal(folder.path(""), false).empty());
  const RunPaths paths{folder.path("")};
  CHECK(record_exit(paths, {Rank{1}, {StageId{1}}, "step 12", "the disk is gone", 2}) == true);
  CHECK(record_exit(paths, {Rank{0}, {StageId{0}}, "step 12", "rank 1 failed", 4}) == false);
  const Json json = json::parse_file(paths.exit_record());
  CHECK(json["rank"] == 1);
  CHECK(json["stages"] == Json::array({1}));
  CHECK(json["action"] == "step 12");
  CHECK(json["message"] == "the disk is gone");
  CHECK(json["code"] == 2);
  std::size_t files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder.path(""))) ++files;
  CHECK(files == 2);  // .lock, and nothing left aside
  const RunDirectory again(folder.path(""), true);
  CHECK_FALSE(std::filesystem::exists(paths.exit_record()));
}

TEST_CASE("a failure that cannot be recorded is still the first to speak", "[run_dir]") {
  CHECK(record_exit(RunPaths{"/proc/nowhere"}, {Rank{0}, {}, "start-up", "why", 1}) == true);
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

TEST_CASE("metrics that cannot be read are neither none nor cut", "[metrics]") {
  test::SimulatedDisk disk;
  const std::string text = "{\"step\": 1, \"loss\": 1, \"ms\": 1, \"samples_per_second\": 1}\n";
  for (std::int64_t call = 0; call < 4; ++call) {
    CAPTURE(call);
    disk.write("/m", text + text);
    disk.set_fault({test::DiskFault::Kind::error, call, EACCES});
    const StorageInstead instead(disk);
    std::size_t read = 2;
    try {
      read = read_metrics("/m").size();
    } catch (const InputError& error) {
      CHECK(says(error.what(), "/m: cannot be "));
    }
    CHECK(read == 2);
    disk.set_fault({test::DiskFault::Kind::error, call, EIO});
    try {
      cut_metrics_back("/m", 0, false);
      CHECK(disk.read("/m").empty());
    } catch (const InputError& error) {
      CHECK(says(error.what(), "/m: cannot be "));
      CHECK((disk.read("/m") == text + text || disk.read("/m").empty()));
    }
  }
}

TEST_CASE("a line that cannot be written whole leaves none of it", "[metrics]") {
  test::SimulatedDisk disk;
  const StorageInstead instead(disk);
  MetricsWriter writer("/m");
  writer.append(record(1));
  const std::string before = disk.read("/m");
  disk.set_fault({test::DiskFault::Kind::error, 0, ENOSPC});
  CHECK_THROWS_WITH(writer.append(record(2)), Catch::Matchers::ContainsSubstring("No space left"));
  CHECK(disk.read("/m") == before);
}

TEST_CASE("cutting back looks at no line before those that go", "[metrics]") {
  const ScratchFolder folder;
  const std::string path = folder.path("metrics.jsonl");
  const auto line = [](int step) {
    return "{\"step\": " + std::to_string(step) + ", \"loss\": 1, \"ms\": 1, \"samples_per_second\": 1}\n";
  };
  const std::string broken = std::string("\0\0\0", 3) + "}\n";
  // A bad byte in old lines, a hole that a power cut left behind the checkpoint's step, and a broken end.
  const std::string kept = line(1) + broken + line(2) + line(3);
  folder.write("metrics.jsonl", kept + line(4) + std::string(5000, '\0') + "\n" + line(6) + "{\"ste");
  CHECK(cut_metrics_back(path, 3, false) == 3);
  CHECK(test::read_text_file(path) == kept);
  CHECK(cut_metrics_back(path, 7, false) == 3);  // lines of steps 4 to 7 are missing
  // Lines of another version are history as well.
  folder.write("metrics.jsonl", "{\"step\": 1, \"new\": 2}\n{\"step\": 2, \"new\": 2}\n");
  CHECK(cut_metrics_back(path, 1, false) == 1);
  CHECK(test::read_text_file(path) == "{\"step\": 1, \"new\": 2}\n");
}

TEST_CASE("a history that is longer than a piece of a copy is cut back to the byte", "[metrics]") {
  const ScratchFolder folder;
  const std::string path = folder.path("metrics.jsonl");
  std::string kept;
  for (int step = 0; kept.size() < (std::size_t{5} << 19U); ++step) {  // two pieces and a half
    kept += "{\"step\": 1, \"number\": " + std::to_string(step) + "}\n";
  }
  folder.write("metrics.jsonl", kept + "{\"step\": 2}\n");
  CHECK(cut_metrics_back(path, 1, false) == 1);
  CHECK(test::read_text_file(path) == kept);
}

TEST_CASE("deeply nested metrics are an error, not the end of the stack", "[metrics]") {
  const ScratchFolder folder;
  const std::string deep = std::string(300'000, '[') + std::string(300'000, ']') + "\n";
  const std::string path = folder.write("metrics.jsonl", deep + "{}\n");
  CHECK_THROWS_WITH(read_metrics(path), Catch::Matchers::ContainsSubstring("line 1"));
  const std::string shallow =
      folder.write("m", std::string(30'000, '[') + std::string(30'000, ']') + "\n{}\n");
  CHECK_THROWS_WITH(read_metrics(shallow), Catch::Matchers::ContainsSubstring("nested more than 100 deep"));
  CHECK(cut_metrics_back(path, 0, false) == -1);
}

TEST_CASE("a broken line in the middle of metrics is an error with its number", "[metrics]") {
  const ScratchFolder folder;
  const std::string path = folder.write("metrics.jsonl", "{\"step\n{\"step\": 1}\n");
  CHECK_THROWS_WITH(read_metrics(path), Catch::Matchers::ContainsSubstring("line 1"));
}

TEST_CASE("progress shows the share and what is left", "[progress]") {
  CHECK(progress_text(0, 0, 100, Seconds{0}) == "[>                             ] 0/100  0.0 %");
  const std::string half = progress_text(0, 50, 100, Seconds{10});
  CHECK(says(half, "[===============>              ] 50/100  50.0 %"));
  CHECK(says(half, "10.0 s left"));
  // After a resume only this session's steps tell the speed.
  CHECK(says(progress_text(50, 75, 100, Seconds{5}), "5.0 s left"));
  CHECK_FALSE(says(progress_text(0, 100, 100, Seconds{10}), "left"));
  MetricsRecord record;
  record.step = 50;
  CHECK(says(step_line(record, 100, Seconds{90}), "samples/s   1 min 30 s left"));
  CHECK_FALSE(says(step_line(record, 100, Seconds{59}), "left"));
}
