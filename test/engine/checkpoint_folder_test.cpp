#include "stagecraft/engine/run/checkpoint_folder.h"

#include "stagecraft/base/files.h"
#include "stagecraft/engine/run/checkpoint.h"
#include "test/support/catch.h"
#include "test/support/command.h"
#include "test/support/simulated_disk.h"

#include <cerrno>
#include <filesystem>

using namespace stagecraft;
using test::says;
using test::ScratchFolder;
namespace fs = std::filesystem;

namespace {

void write_complete(const ScratchFolder& folder, const std::string& name) {
  make_folder(folder.path(name));
  folder.write(name + "/manifest.json", "{}");
  folder.write(name + "/complete", "");
}

}  // namespace

TEST_CASE("complete checkpoints are found, by step; other names and unfinished ones do not count",
          "[checkpoint_folder]") {
  const ScratchFolder folder;
  CHECK(complete_checkpoints(folder.path("none")).empty());
  for (const char* name : {"step-00000100", "step-00000020", "step--0000005", "step-x", "step-1e3"}) {
    write_complete(folder, name);
  }
  make_folder(folder.path("step-00000300"));
  CHECK(complete_checkpoints(folder.path("")) ==
        std::vector<std::string>{folder.path("/step-00000020"), folder.path("/step-00000100")});
  CHECK(newest_checkpoint(folder.path("")) == folder.path("/step-00000100"));
}

TEST_CASE("a folder that cannot be listed or looked into is not one without checkpoints",
          "[checkpoint_folder]") {
  test::SimulatedDisk disk;
  disk.write("/c/step-00000001/complete", "");
  const StorageInstead instead(disk);
  REQUIRE(newest_checkpoint("/c") == "/c/step-00000001");
  for (std::int64_t call = 0; call < 3; ++call) {
    for (const int error : {EACCES, EIO, ESTALE}) {
      disk.set_fault({test::DiskFault::Kind::error, call, error});
      CHECK_THROWS_WITH(newest_checkpoint("/c"), Catch::Matchers::ContainsSubstring("/c") &&
                                                     Catch::Matchers::ContainsSubstring("cannot be read"));
    }
  }
}

TEST_CASE("whatever is not complete is swept, and nothing else", "[checkpoint_folder]") {
  const ScratchFolder folder;
  write_complete(folder, "step-00000001");
  folder.write("step-00000001/manifest.json.0011223344556677.part", "half");
  make_folder(folder.path("step-00000002"));  // renamed by a version that marked it afterwards
  folder.write("step-00000002/a.safetensors", "x");
  make_folder(folder.path("step-00000003.part"));
  make_folder(folder.path("step-00000003.0011223344556677.part/inner"));
  make_folder(folder.path("mine"));
  CHECK(sweep_checkpoints(folder.path("")).empty());
  CHECK(names_in(folder.path("")) == std::vector<std::string>{"mine", "step-00000001"});
  CHECK(names_in(folder.path("step-00000001")) == std::vector<std::string>{"complete", "manifest.json"});
}

TEST_CASE("one old checkpoint that cannot be looked at stops nothing", "[checkpoint_folder]") {
  for (std::int64_t call = 0; call < 30; ++call) {
    CAPTURE(call);
    test::SimulatedDisk disk;
    for (const char* step : {"1", "2", "3"})
      disk.write(std::string("/c/step-0000000") + step + "/complete", "");
    const StorageInstead instead(disk);
    disk.set_fault({test::DiskFault::Kind::error, call, ESTALE});
    (void)remove_older_checkpoints("/c", 1);
    disk.set_fault({});
    CHECK(newest_checkpoint("/c") == "/c/step-00000003");
    CHECK(tidy_checkpoints("/c", 1).empty());
    CHECK(disk.files() == std::vector<std::string>{"/c/step-00000003/complete"});
  }
}

TEST_CASE("a stale folder in the place of a new checkpoint makes room, whatever is in it",
          "[checkpoint_folder]") {
  const ScratchFolder folder;
  make_folder(folder.path("step-00000005/.nfs0001"));
  const std::string aside = begin_checkpoint(folder.path(""), 5);
  folder.write(fs::path(aside).filename().string() + "/new", "");
  const std::string published = publish_checkpoint(folder.path(""), aside, 5);
  CHECK(names_in(published) == std::vector<std::string>{"complete", "new"});
  CHECK(names_in(folder.path("")) == std::vector<std::string>{"step-00000005"});
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
