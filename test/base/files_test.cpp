#include "stagecraft/base/files.h"

#include "stagecraft/base/json.h"
#include "test/support/catch.h"
#include "test/support/scratch_folder.h"
#include "test/support/simulated_disk.h"

#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <sys/stat.h>
#include <unistd.h>

using namespace stagecraft;
using test::DiskFault;
using test::ScratchFolder;
using test::SimulatedDisk;
namespace fs = std::filesystem;

namespace {

template <class Body>
std::string complaint(const Body& body) {
  try {
    body();
    return "";
  } catch (const InputError& error) {
    return error.what();
  }
}

/// Replaces "/a/file" with "new" on a disk that has "old" there.
std::string replace_on(SimulatedDisk& disk) {
  const StorageInstead instead(disk);
  return complaint([] { write_file_atomically("/a/file", "new"); });
}

SimulatedDisk& with_old(SimulatedDisk& disk) {
  disk.write("/a/file", "old");
  return disk;
}

}  // namespace

TEST_CASE("a file is replaced whole or not at all, whichever call fails, and nothing stays aside",
          "[files]") {
  std::int64_t calls = 0;
  {
    SimulatedDisk disk;
    CHECK(replace_on(with_old(disk)).empty());
    CHECK(disk.read("/a/file") == "new");
    calls = disk.calls();
  }
  CHECK(calls >= 6);
  for (const int error : {EIO, ENOSPC, EACCES, EROFS}) {
    for (std::int64_t call = 0; call < calls; ++call) {
      CAPTURE(error, call);
      SimulatedDisk disk;
      with_old(disk).set_fault({DiskFault::Kind::error, call, error});
      const std::string said = replace_on(disk);
      const std::string now = disk.read("/a/file");
      CHECK((now == "new" || (now == "old" && said.find("/a/file: cannot be written: ") == 0)));
      CHECK(disk.files() == std::vector<std::string>{"/a/file"});
    }
  }
}

TEST_CASE("a file that somebody looked at and refused replaces nothing and does not stay aside", "[files]") {
  SimulatedDisk disk;
  const StorageInstead instead(with_old(disk));
  const auto refuse = [&](const std::string& aside) {
    CHECK(disk.read(aside) == "new");
    throw InputError({aside, ""}, "is not what it should be");
  };
  CHECK_THROWS_AS(write_file_atomically("/a/file", {"new"}, Links::replace, refuse), InputError);
  CHECK(disk.read("/a/file") == "old");
  CHECK(disk.files().size() == 1);
}

TEST_CASE("a short write is gone on with", "[files]") {
  for (std::int64_t call = 0; call < 10; ++call) {
    SimulatedDisk disk;
    with_old(disk).set_fault({DiskFault::Kind::short_write, call, 0});
    CHECK(replace_on(disk).empty());
    CHECK(disk.read("/a/file") == "new");
  }
}

TEST_CASE(
    "after a power cut a replaced file is the old or the new one, and the new one once it was said to be",
    "[files]") {
  for (std::int64_t call = 0; call < 10; ++call) {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      CAPTURE(call, seed);
      SimulatedDisk disk;
      with_old(disk).set_fault({DiskFault::Kind::power_cut, call, 0});
      const bool done = replace_on(disk).empty();
      disk.restart(seed);
      const std::string now = disk.read("/a/file");
      CHECK((now == "new" || (now == "old" && !done)));
    }
  }
}

TEST_CASE("a replaced file keeps its permissions", "[files]") {
  const ScratchFolder folder;
  const std::string path = folder.write("secret", "old");
  REQUIRE(::chmod(path.c_str(), 0600) == 0);
  write_file_atomically(path, "new");
  CHECK(fs::status(path).permissions() == (fs::perms::owner_read | fs::perms::owner_write));
}

TEST_CASE("where others may have put links they are replaced, not followed", "[files]") {
  const ScratchFolder folder;
  const std::string precious = folder.write("precious", "mine");
  fs::create_symlink(precious, folder.path("link"));
  write_file_atomically(folder.path("link"), "new", Links::replace);
  CHECK(test::read_text_file(precious) == "mine");
  CHECK(test::read_text_file(folder.path("link")) == "new");
  CHECK_FALSE(fs::is_symlink(folder.path("link")));
}

TEST_CASE("files that are too large are refused before they are read", "[files]") {
  const ScratchFolder folder;
  const std::string sparse = folder.write("sparse", "");
  fs::resize_file(sparse, std::uintmax_t{100} << 30U);
  CHECK(complaint([&] { (void)read_file(sparse); }) ==
        sparse + ": has 107374182400 bytes; at most 1073741824 are read");
  CHECK(complaint([&] { (void)json::parse_file(sparse); }).find("at most 1073741824") != std::string::npos);
  CHECK(complaint([] { (void)read_file("/dev/zero", 1000); }) ==
        "/dev/zero: has more than 1000 bytes; at most 1000 are read");
  CHECK(read_file(folder.write("just", std::string(1000, 'x')), 1000).size() == 1000);
}

TEST_CASE("a pipe is read while somebody writes, and blocks nobody otherwise", "[files]") {
  const ScratchFolder folder;
  const std::string pipe = folder.path("pipe");
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK(complaint([&] { (void)json::parse_file(pipe); }) == pipe + ": is empty; expected a JSON document");
  CHECK(complaint([&] { write_file_atomically(pipe, "x"); }) ==
        pipe + ": cannot be written: nobody has this pipe open for reading");
}

TEST_CASE("an empty file is told from one that is missing", "[files]") {
  const ScratchFolder folder;
  CHECK(complaint([&] { (void)json::parse_file(folder.write("e.json", " \n")); }).find("is empty") !=
        std::string::npos);
  CHECK(complaint([&] { (void)json::parse_file(folder.path("none")); }).find("No such file") !=
        std::string::npos);
  CHECK(complaint([&] { (void)json::parse_file(folder.path("")); }).find("is a folder, not a file") !=
        std::string::npos);
}

TEST_CASE("a tree is removed without following its links", "[files]") {
  const ScratchFolder folder;
  make_folder(folder.path("kept/inner"));
  make_folder(folder.path("gone/a/b"));
  folder.write("gone/a/file", "x");
  fs::create_symlink(folder.path("kept"), folder.path("gone/link"));
  CHECK_FALSE(remove_tree(folder.path("gone")));
  CHECK_FALSE(fs::exists(folder.path("gone")));
  CHECK(fs::exists(folder.path("kept/inner")));
  CHECK_FALSE(remove_tree(folder.path("gone")));  // what is gone is no error
}

TEST_CASE("the folder of a path", "[files]") {
  CHECK(folder_of("a") == ".");
  CHECK(folder_of("a/") == ".");
  CHECK(folder_of("a/b") == "a");
  CHECK(folder_of("a//b/") == "a");
  CHECK(folder_of("/a") == "/");
  CHECK(folder_of("/") == "/");
}
