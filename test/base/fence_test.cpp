#include "base/fence.h"

#include "base/error.h"
#include "base/files.h"
#include "test/support/catch.h"
#include "test/support/simulated_disk.h"

#include <atomic>
#include <functional>
#include <map>

using namespace stagecraft;
using test::SimulatedDisk;

TEST_CASE("behind a fence every kind of change is refused once the folder is another's", "[fence]") {
  SimulatedDisk disk;
  for (const char* name : {"file", "old", "log", "aside", "gone.0123456789abcdef.part"}) {
    disk.write(std::string("/run/") + name, "as it was");
  }
  disk.write("/run/sub/file", "as it was");
  const StorageInstead instead(disk);
  std::atomic<bool> taken = false, unknown = false;
  const Fence fence("/run/", [&]() -> std::error_code {
    if (unknown) return std::make_error_code(std::errc::io_error);
    if (taken) throw TakenOverError("/run: was taken over");
    return {};
  });
  StoredFilePtr log;
  REQUIRE_FALSE(storage().open("/run/log", OpenFor::appending, log));
  std::size_t wrote = 0;
  const auto error_of = [](const std::error_code& error) {
    if (error) throw InputError(error.message());
  };
  const std::map<std::string, std::function<void()>> changes{
      {"append", [&] { error_of(log->write("more", wrote)); }},
      {"cut", [&] { error_of(log->cut(1)); }},
      {"mode", [&] { error_of(log->set_mode(0600)); }},
      {"open to append", [] { (void)open_to_append("/run/other"); }},
      {"make", [] { write_new_file("/run/new", {"new"}); }},
      {"replace", [] { write_file_atomically("/run/file", "new", Links::replace); }},
      {"replace below", [] { write_file_atomically("/run/./sub/file", "new", Links::replace); }},
      {"rename to", [&] { error_of(storage().rename("/elsewhere", "/run/file")); }},
      {"rename away", [&] { error_of(storage().rename("/run/file", "/run/file.0123456789abcdef.part")); }},
      {"link", [&] { error_of(storage().link("/run/old", "/run/exit.json")); }},
      {"remove", [&] { error_of(storage().remove("/run/old")); }},
      {"remove what is aside", [&] { error_of(storage().remove("/run/gone.0123456789abcdef.part")); }},
      {"remove a tree", [&] { error_of(remove_tree("/run/sub")); }},
      {"make a folder", [] { make_folder("/run/folder"); }},
  };
  const auto contents = [&] {
    std::map<std::string, std::string> all;
    for (const std::string& path : disk.files()) {
      if (named_aside(path.substr(path.rfind('/') + 1)).substr(0, 4) != "file") all[path] = disk.read(path);
    }
    return all;
  };
  const auto before = contents();
  for (const auto& [name, change] : changes) {
    INFO(name);
    taken = true;
    CHECK_THROWS_AS(change(), TakenOverError);
    unknown = true;
    CHECK_THROWS_WITH(change(), Catch::Matchers::ContainsSubstring("Input/output error"));
    unknown = false;
    CHECK(contents() == before);
  }
  // What is aside counts for nothing, what is read changes nothing, and other folders are others'.
  CHECK_NOTHROW(make_folder("/run/step.0123456789abcdef.part"));
  CHECK_NOTHROW(write_new_file("/run/step.0123456789abcdef.part/layer", {"half"}));
  CHECK(read_file("/run/file") == "as it was");
  CHECK_NOTHROW(write_file_atomically("/runs", "mine", Links::replace));
  CHECK_NOTHROW(write_file_atomically("/run.json", "mine", Links::replace));
  taken = false;
  CHECK_NOTHROW(write_file_atomically("/run/file", "new", Links::replace));
  CHECK(disk.read("/run/file") == "new");
}

TEST_CASE("a fence that is gone holds nobody", "[fence]") {
  SimulatedDisk disk;
  const StorageInstead instead(disk);
  make_folder("/run");
  {
    const Fence fence("/run", []() -> std::error_code { throw TakenOverError("taken"); });
    CHECK_THROWS_AS(make_folder("/run/a"), TakenOverError);
  }
  CHECK_NOTHROW(make_folder("/run/a"));
}
