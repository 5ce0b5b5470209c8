#include "engine/run/save/checkpoint_folder.h"

#include "base/files.h"
#include "engine/records/metrics/manifest.h"
#include "engine/run/save/checkpoint.h"
#include "test/support/catch.h"
#include "test/support/command.h"
#include "test/support/simulated_disk.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <unistd.h>

using namespace stagecraft;
using test::says;
using test::ScratchFolder;
namespace fs = std::filesystem;

namespace {

constexpr const char* kRun = "run.0123456789abcdef";

std::string manifest(const std::string& run = kRun) {
  Manifest made;
  made.run = run;
  made.training = made.pipeline = Json::object();
  return manifest_text(made);
}

void write_complete(const ScratchFolder& folder, const std::string& name) {
  make_folder(folder.path(name));
  folder.write(name + "/manifest.json", manifest());
}

}  // namespace

TEST_CASE("complete checkpoints are found, by step; other names and unfinished ones do not count",
          "[checkpoint_folder]") {
  const ScratchFolder folder;
  CHECK(complete_checkpoints(folder.path("none")).empty());
  for (const char* name : {"step-00000100", "step-00000020", "step--0000005", "step-x", "step-1e3",
                           "step-500", "step-000000500", "other"}) {
    write_complete(folder, name);
  }
  make_folder(folder.path("step-00000300"));
  fs::create_directory_symlink(folder.path("other"), folder.path("step-00000400"));
  CHECK(complete_checkpoints(folder.path("")) ==
        std::vector<std::string>{folder.path("/step-00000020"), folder.path("/step-00000100")});
  CHECK(newest_checkpoint(folder.path("")) == folder.path("/step-00000100"));
}

TEST_CASE("a folder that cannot be listed or looked into is not one without checkpoints",
          "[checkpoint_folder]") {
  test::SimulatedDisk disk;
  disk.write("/c/step-00000001/manifest.json", manifest());
  const StorageInstead instead(disk);
  REQUIRE(newest_checkpoint("/c") == "/c/step-00000001");
  for (std::int64_t call = 0; call < 4; ++call) {
    for (const int error : {EACCES, EIO, ESTALE}) {
      disk.set_fault({test::DiskFault::Kind::error, call, error});
      CHECK_THROWS_WITH(newest_checkpoint("/c"), Catch::Matchers::ContainsSubstring("/c") &&
                                                     Catch::Matchers::ContainsSubstring("cannot be read"));
    }
  }
}

TEST_CASE("what a run was writing is swept, and nothing else", "[checkpoint_folder]") {
  const ScratchFolder folder;
  write_complete(folder, "step-00000001");
  folder.write("step-00000001/manifest.json.0011223344556677.part", "half");
  make_folder(folder.path("step-00000003.0011223344556677.part/inner"));
  make_folder(folder.path("probe.0011223344556677.part/rank-0"));
  make_folder(folder.path("elsewhere"));
  const std::vector<std::string> strangers{"mine",
                                           "film.mkv.part",
                                           "film.0011223344556677.part",
                                           "step-00000002",
                                           "step-00000003.part",
                                           "step-3.0011223344556677.part",
                                           "step-00000003.001122334455667.part",
                                           "step-00000003.0011223344556677.parts",
                                           "probe.part"};
  for (const std::string& name : strangers) {
    make_folder(folder.path(name));
    folder.write(name + "/a.safetensors", "x");
  }
  folder.write("step-00000001/mine.part", "x");
  folder.write("step-00000004.0011223344556677.part", "a file");
  fs::create_directory_symlink(folder.path("elsewhere"), folder.path("step-00000005.0011223344556677.part"));
  CHECK(sweep_checkpoints(folder.path("")).empty());
  std::vector<std::string> left{strangers};
  left.insert(left.end(), {"elsewhere", "step-00000001", "step-00000004.0011223344556677.part",
                           "step-00000005.0011223344556677.part"});
  std::sort(left.begin(), left.end());
  CHECK(names_in(folder.path("")) == left);
  CHECK(names_in(folder.path("step-00000001")) == std::vector<std::string>{"manifest.json", "mine.part"});
  CHECK(fs::exists(folder.path("step-00000002/a.safetensors")));
  const std::vector<std::string> said = strangers_in(folder.path(""));
  CHECK(said.size() == 5);
  CHECK(says(said.front(), "step-00000002 has no manifest.json, so it is no whole checkpoint"));
}

TEST_CASE("another user's folder is not swept, whatever its name", "[checkpoint_folder]") {
  test::SimulatedDisk disk;
  disk.write("/c/step-00000001.0011223344556677.part/a", "x");
  disk.set_owner("/c/step-00000001.0011223344556677.part", ::geteuid() + 1);
  const StorageInstead instead(disk);
  CHECK(sweep_checkpoints("/c").empty());
  CHECK(disk.files().size() == 1);
}

TEST_CASE("of older checkpoints only the run's own go", "[checkpoint_folder]") {
  test::SimulatedDisk disk;
  const auto write = [&](int step, const std::string& contents) {
    disk.write(checkpoint_path("/c", step) + "/manifest.json", contents);
  };
  write(1, manifest("run.another"));
  write(2, manifest());
  write(3, R"({"framework": "another"})");
  write(4, manifest());
  write(5, manifest("run.another"));
  write(6, manifest());
  const StorageInstead instead(disk);
  const std::vector<std::string> notes = remove_older_checkpoints("/c", 1, kRun);
  REQUIRE(notes.size() == 1);
  CHECK(says(notes.front(), "/c/step-00000003/manifest.json"));
  CHECK(complete_checkpoints("/c") == std::vector<std::string>{"/c/step-00000001", "/c/step-00000003",
                                                               "/c/step-00000005", "/c/step-00000006"});
}

TEST_CASE("one old checkpoint that cannot be looked at stops nothing", "[checkpoint_folder]") {
  for (std::int64_t call = 0; call < 30; ++call) {
    CAPTURE(call);
    test::SimulatedDisk disk;
    for (const char* step : {"1", "2", "3"})
      disk.write(std::string("/c/step-0000000") + step + "/manifest.json", manifest());
    const StorageInstead instead(disk);
    disk.set_fault({test::DiskFault::Kind::error, call, ESTALE});
    (void)remove_older_checkpoints("/c", 1, kRun);
    disk.set_fault({});
    CHECK(newest_checkpoint("/c") == "/c/step-00000003");
    CHECK(tidy_checkpoints("/c", 1, kRun).empty());
    CHECK(disk.files() == std::vector<std::string>{"/c/step-00000003/manifest.json"});
  }
}

TEST_CASE("what is in the place of a new checkpoint makes room, and is lost in no case",
          "[checkpoint_folder]") {
  const ScratchFolder folder;
  for (int time = 1; time <= 2; ++time) {
    const std::string aside = begin_checkpoint(folder.path(""), 5);
    folder.write(fs::path(aside).filename().string() + "/new", "");
    if (time == 1) make_folder(folder.path("step-00000005/.nfs0001"));
    const std::string note = publish_checkpoint(folder.path(""), aside, 5);
    CHECK(says(note, "step-00000005 was there already, and is "));
    CHECK(says(note, "/step-00000005.earlier-" + std::to_string(time) + " now"));
  }
  CHECK(names_in(folder.path("step-00000005")) == std::vector<std::string>{"new"});
  CHECK(names_in(folder.path("step-00000005.earlier-1")) == std::vector<std::string>{".nfs0001"});
  CHECK(names_in(folder.path("step-00000005.earlier-2")) == std::vector<std::string>{"new"});
}

TEST_CASE("checkpoints are not written through a link", "[checkpoint_folder]") {
  const ScratchFolder folder;
  make_folder(folder.path("elsewhere"));
  fs::create_directory_symlink(folder.path("elsewhere"), folder.path("checkpoints"));
  CHECK_THROWS_AS(begin_checkpoint(folder.path("checkpoints"), 5), InputError);
  CHECK(names_in(folder.path("elsewhere")).empty());
}

TEST_CASE("two processes never write into one folder", "[checkpoint_folder]") {
  const ScratchFolder folder;
  CHECK(begin_checkpoint(folder.path(""), 5) != begin_checkpoint(folder.path(""), 5));
}

TEST_CASE("layers' files have names that file systems take, one each", "[checkpoint_folder]") {
  CHECK(layer_file("block0.attention") == "block0.attention.safetensors");
  CHECK(layer_file("a/b c") == "a%2Fb%20c.safetensors");
  std::string chinese;
  for (int i = 0; i < 27; ++i) chinese += "\xe5\xb1\x82";
  const std::string name = layer_file(chinese);
  CHECK(name.size() <= 212);
  CHECK(name != layer_file(chinese + "2"));
  CHECK(layer_file(std::string(237, 'x')) != layer_file(std::string(238, 'x')));
  CHECK(layer_file(std::string(5000, 'x')).size() <= 212);
}
