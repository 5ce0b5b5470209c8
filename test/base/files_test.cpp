#include "base/files.h"

#include "base/json.h"
#include "test/support/catch.h"
#include "test/support/scratch_folder.h"
#include "test/support/simulated_disk.h"

#include <fmt/format.h>

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
  for (std::int64_t call = 0; call < 20; ++call) {
    SimulatedDisk disk;
    with_old(disk).set_fault({DiskFault::Kind::short_write, call, 0});
    CHECK(replace_on(disk).empty());
    CHECK(disk.read("/a/file") == "new");
  }
}

TEST_CASE(
    "after a power cut a replaced file is the old or the new one, and the new one once it was said to be",
    "[files]") {
  for (std::int64_t call = 0; call < 20; ++call) {
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

TEST_CASE("of a replaced file's mode no special bit stays, and of another user's file nothing", "[files]") {
  const unsigned me = ::geteuid();
  for (const Links links : {Links::follow, Links::replace}) {
    for (const unsigned owner : {me, me + 1}) {
      for (unsigned mode = 0; mode <= 07777; mode += 0123) {
        CAPTURE(owner, mode);
        SimulatedDisk disk;
        with_old(disk).set_owner("/a/file", owner);
        disk.set_mode("/a/file", mode);
        const StorageInstead instead(disk);
        write_file_atomically("/a/file", "new", links);
        CHECK(disk.mode("/a/file") == (owner == me ? mode & 0777U : 0644U));
      }
    }
  }
}

TEST_CASE("on a real disk neither", "[files]") {
  const ScratchFolder folder;
  const std::string path = folder.write("shared", "old");
  REQUIRE(::chmod(path.c_str(), 06777) == 0);
  struct stat now {};
  if (::geteuid() == 0) {  // nobody but root gives files away
    const std::string planted = folder.write("planted", "{}");
    REQUIRE(::chown(planted.c_str(), 65534, 65534) == 0);
    REQUIRE(::chmod(planted.c_str(), 06777) == 0);
    write_file_atomically(planted, "new");
    REQUIRE(::stat(planted.c_str(), &now) == 0);
    CHECK(now.st_uid == 0);
    CHECK((now.st_mode & 07133U) == 0);
    const std::string group = folder.write("group", "old");
    REQUIRE(::chown(group.c_str(), 0, 65534) == 0);
    REQUIRE(::chmod(group.c_str(), 0664) == 0);
    write_file_atomically(group, "new");
    REQUIRE(::stat(group.c_str(), &now) == 0);
    CHECK((now.st_mode & 07777U) == 0644);  // another group than the one that might write
  }
  write_file_atomically(path, "new");
  REQUIRE(::stat(path.c_str(), &now) == 0);
  CHECK((now.st_mode & 07777U) == 0777);
}

TEST_CASE("what a killed process left aside goes when the file is written again, and nothing else",
          "[files]") {
  const ScratchFolder folder;
  const std::string kept[] = {"file.part",
                              "file.0123456789abcdeg.part",
                              "file.0123456789abcdef.part.part",
                              "file.0123456789abcdef",
                              "other.0123456789abcdef.part",
                              "my.file.0123456789abcdef.part",
                              "file0123456789abcdef.part"};
  for (const std::string& name : kept) folder.write(name, "mine");
  const std::string killed = folder.write("file.0123456789abcdef.part", "half");
  const std::string held = folder.write("file.00000000000000ff.part", "half");
  fs::create_symlink(folder.path("file.part"), folder.path("file.1111111111111111.part"));
  StoredFilePtr writer;
  REQUIRE_FALSE(storage().open(held, OpenFor::reading, writer));
  REQUIRE_FALSE(writer->lock());
  write_file_atomically(folder.path("file"), "new", Links::replace);
  CHECK(fs::exists(killed));  // of a run's own files, the run sweeps
  write_file_atomically(folder.path("file"), "new");
  CHECK_FALSE(fs::exists(killed));
  CHECK(fs::exists(held));
  CHECK(fs::is_symlink(folder.path("file.1111111111111111.part")));
  for (const std::string& name : kept) CHECK(test::read_text_file(folder.path(name)) == "mine");
  SimulatedDisk disk;
  disk.write("/a/file.0123456789abcdef.part", "another user's");
  disk.set_owner("/a/file.0123456789abcdef.part", ::geteuid() + 1);
  CHECK(replace_on(disk).empty());
  CHECK(disk.files().size() == 2);
}

TEST_CASE("links of other users are not written through", "[files]") {
  if (::geteuid() != 0) return;  // nobody else makes such
  const ScratchFolder folder;
  const std::string precious = folder.write("precious", "mine");
  fs::create_symlink(precious, folder.path("link"));
  REQUIRE(::lchown(folder.path("link").c_str(), 65534, 65534) == 0);
  CHECK(complaint([&] {
          write_file_atomically(folder.path("link"), "x");
        }).find("is a link of another user") != std::string::npos);
  CHECK(test::read_text_file(precious) == "mine");
}

TEST_CASE("nothing is appended to what may be somebody else's", "[files]") {
  const ScratchFolder folder;
  const std::string file = folder.write("file", "mine");
  CHECK_NOTHROW(open_to_append(file));
  fs::create_hard_link(file, folder.path("second"));
  CHECK(complaint([&] { (void)open_to_append(file); }).find("has 2 names (hard links)") != std::string::npos);
  SimulatedDisk disk;
  disk.write("/a/file", "another user's");
  disk.set_owner("/a/file", ::geteuid() + 1);
  const StorageInstead instead(disk);
  CHECK(complaint([] { (void)open_to_append("/a/file"); }).find("/a/file: belongs to user ") == 0);
  CHECK(disk.files() == std::vector<std::string>{"/a/file"});
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
  // As /dev/stdout is where a command stands before a "|": a link in /proc to what has no name.
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  write_file_atomically(fmt::format("/proc/self/fd/{}", ends[1]), "through");
  char said[8] = {};
  CHECK(::read(ends[0], said, 7) == 7);
  CHECK(std::string(said) == "through");
  ::close(ends[0]);
  ::close(ends[1]);
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

TEST_CASE("a path at which nothing is names the one that was meant", "[files]") {
  const ScratchFolder folder;
  fs::create_directories(folder.path("runs/first"));
  folder.write("profile.json", "{}");
  folder.write("runs/first/plan.json", "{}");
  const auto of = [&](const std::string& name) {
    return complaint([&] { (void)read_file(folder.path(name)); });
  };
  CHECK(of("profle.json") == folder.path("profle.json") +
                                 ": cannot be opened: No such file or directory; did you mean \"" +
                                 folder.path("profile.json") + "\"?");
  // The first name that is wrong, whatever comes behind it.
  CHECK(of("run/first/plan.json").ends_with("; did you mean \"" + folder.path("runs") + "\"?"));
  CHECK(of("runs/First/plan.json").ends_with("; did you mean \"" + folder.path("runs/first") + "\"?"));
  CHECK(of("runs/first/plna.json")
            .ends_with("; did you mean \"" + folder.path("runs/first/plan.json") + "\"?"));
  // Nothing is near.
  CHECK(of("weights.bin").ends_with("cannot be opened: No such file or directory"));
  CHECK(of("runs/first/weights.bin").ends_with("cannot be opened: No such file or directory"));
}
