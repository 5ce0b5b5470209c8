// Whole runs on a disk that fails: at its n-th call, for every n, or with the power. After each the run must
// go on to the same bits from the newest whole checkpoint, with all its history and nothing left lying about.

#include "base/files.h"
#include "base/fingerprint.h"
#include "base/json.h"
#include "engine/records/metrics/manifest.h"
#include "engine/records/metrics/metrics.h"
#include "engine/run/save/checkpoint_folder.h"
#include "engine/run/start/train.h"
#include "test/engine/left_on_disk.h"
#include "test/engine/stored_run.h"
#include "test/support/catch.h"
#include "test/support/full.h"
#include "test/support/simulated_disk.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <functional>
#include <iostream>
#include <map>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

using namespace stagecraft;
using test::Call;
using test::disk_with_run;
using test::DiskFault;
using test::Left;
using test::SimulatedDisk;

namespace {

const RunPaths kPaths{"/runs/one"};

/// A disk for runs that a checkpoint which cannot be written ends.
std::unique_ptr<SimulatedDisk> fresh_disk() {
  return disk_with_run([](Json& config) { config["checkpoint"]["on_failure"] = "stop"; });
}

/// A disk for runs that go on without a checkpoint that cannot be written.
std::unique_ptr<SimulatedDisk> disk_to_go_on() {
  return disk_with_run([](Json&) {});
}

/// The same, with steps that go on while a checkpoint is written; every second one is owed a validation, and is not.
std::unique_ptr<SimulatedDisk> disk_in_background(const char* on_failure) {
  return disk_with_run([&](Json& config) {
    config["checkpoint"]["on_failure"] = on_failure;
    config["checkpoint"]["in_background"] = true;
  });
}

/// "" for a run that came to its end, else what it said, in one line. `printed`: what people saw of it.
std::string session(SimulatedDisk& disk, bool resume, std::string* printed = nullptr) {
  TrainOutput output;
  if (printed != nullptr) output.print = [&](const std::string& text) { *printed += text; };
  try {
    (void)train_on(disk, resume, std::move(output));
    return "";
  } catch (const InputError& error) {
    CHECK(std::string(error.what()).find('\n') == std::string::npos);
    return error.what();
  }
}

const Left& undisturbed() {
  static const Left left = [] {
    const auto disk = fresh_disk();
    REQUIRE(session(*disk, false).empty());
    return test::left_on(*disk);
  }();
  return left;
}

std::int64_t calls_of(const SimulatedDisk& before, bool resume, Call counted = Call::look) {
  const auto disk = before.copy();
  DiskFault none;
  none.counted = counted;
  disk->set_fault(none);
  REQUIRE(session(*disk, resume) == "");
  return disk->calls();
}

struct Tally {
  int runs = 0;      ///< faults tried
  int unharmed = 0;  ///< the run came to its end all the same
  int resumed = 0;   ///< it stopped with a line, and the next session came to the end
};

void check_left(SimulatedDisk& disk) { CHECK(test::difference(test::left_on(disk), undisturbed()) == ""); }

/// One session with the fault, `mend`, and one without it.
void try_fault(const SimulatedDisk& before, bool resume, const DiskFault& fault,
               const std::function<void(SimulatedDisk&)>& mend, Tally& tally) {
  const auto disk = before.copy();
  disk->set_fault(fault);
  const std::string said = session(*disk, resume);
  INFO(fmt::format("call {}, error {}: {}", fault.call, fault.error, said));
  mend(*disk);
  const std::string after = session(*disk, true);
  CHECK(after == "");
  check_left(*disk);
  ++tally.runs;
  ++(said.empty() ? tally.unharmed : tally.resumed);
}

/// A run that lost its disk behind step 2.
std::unique_ptr<SimulatedDisk> interrupted_disk() {
  const std::int64_t calls = calls_of(*fresh_disk(), false);
  auto disk = fresh_disk();
  disk->set_fault({DiskFault::Kind::power_cut, calls * 3 / 5, 0});
  REQUIRE(session(*disk, false) != "");
  disk->set_fault({});
  REQUIRE(disk->read("/runs/one/checkpoints/step-00000001/manifest.json") +
              disk->read("/runs/one/checkpoints/step-00000002/manifest.json") +
              disk->read("/runs/one/checkpoints/step-00000003/manifest.json") !=
          "");
  return disk;
}

/// Every `stride`-th call that counts, from the `first` on; all where test::full().
struct Sample {
  std::int64_t first = 0, stride = 1;
};

void sweep(const SimulatedDisk& before, bool resume, const std::string& name, const DiskFault& kind,
           Sample sample) {
  if (test::full()) sample = {};
  const std::int64_t calls = calls_of(before, resume, kind.counted);
  Tally tally;
  // Ranks are threads: a call has not the same number each time, and a few more may be made.
  for (std::int64_t call = sample.first; call < calls + 5; call += sample.stride) {
    DiskFault fault = kind;
    fault.call = call;
    try_fault(
        before, resume, fault,
        [&](SimulatedDisk& disk) {
          if (fault.kind == DiskFault::Kind::power_cut)
            return disk.restart(static_cast<std::uint64_t>(call) * 77 + 1);
          disk.set_fault({});
        },
        tally);
  }
  std::cout << fmt::format(
      "{:<12} {:<8} {:>4} calls {:>4} tried: {:>4} came to their end, {:>4} were resumed\n", name,
      resume ? "resumed" : "fresh", calls, tally.runs, tally.unharmed, tally.resumed);
}

DiskFault fault_of(DiskFault::Kind kind, int error = 0, Call counted = Call::look) {
  DiskFault fault;
  fault.kind = kind;
  fault.error = error;
  fault.counted = counted;
  return fault;
}

/// Where power goes: at calls that change something, since what a call that looks would leave is what the next change
/// finds; and at some of all calls, for what the session says of it. A run writes four checkpoints with the same calls, and
/// a stride of 3 meets each call of one in one of them.
void cut_power(const SimulatedDisk& before, bool resume, const std::string& name, std::int64_t first) {
  sweep(before, resume, name, fault_of(DiskFault::Kind::power_cut, 0, Call::change),
        {.first = first, .stride = 3});
  sweep(before, resume, name, fault_of(DiskFault::Kind::power_cut), {.first = first, .stride = 37});
}

/// Of what only writes can suffer.
DiskFault short_write() { return fault_of(DiskFault::Kind::short_write, 0, Call::write); }

}  // namespace

TEST_CASE("a call that fails once costs no state and no history", "[storage_faults]") {
  const auto fresh = fresh_disk();
  const auto interrupted = interrupted_disk();
  const std::vector<std::pair<const char*, int>> errors{
      {"EIO", EIO}, {"ENOSPC", ENOSPC}, {"EACCES", EACCES}, {"EROFS", EROFS}};
  // Each error at other calls: 0, 23, ...; 6, 29, ...; 12, 35, ...; 18, 41, ...
  std::int64_t first = 0;
  for (const auto& [name, error] : errors) {
    const Sample sample{.first = first, .stride = 23};
    sweep(*fresh, false, name, fault_of(DiskFault::Kind::error, error), sample);
    sweep(*interrupted, true, name, fault_of(DiskFault::Kind::error, error), sample);
    first += 6;
  }
  sweep(*fresh, false, "short write", short_write(), {.first = 0, .stride = 3});
  sweep(*interrupted, true, "short write", short_write(), {.first = 1, .stride = 3});
}

TEST_CASE("a checkpoint that cannot be written is made up for by the next one", "[storage_faults]") {
  const auto before = disk_to_go_on();
  const std::int64_t calls = calls_of(*before, false);
  int went_on = 0;
  const std::int64_t step = test::stride<std::int64_t>(9);
  for (std::int64_t call = 0; call < calls; call += step) {
    const auto disk = before->copy();
    disk->set_fault({DiskFault::Kind::error, call, ENOSPC});
    std::string printed;
    const std::string said = session(*disk, false, &printed);
    INFO(fmt::format("call {}: {}\n{}", call, said, printed));
    if (printed.find("could not be written") != std::string::npos) {
      ++went_on;
      CHECK(said.empty());
      CHECK(printed.find("No space left on device. The run goes on") != std::string::npos);
    }
    disk->set_fault({});
    CHECK(session(*disk, true).empty());
    check_left(*disk);
  }
  CHECK(went_on > 5);
  std::cout << fmt::format("{} of {} runs went on without a checkpoint\n", went_on,
                           (calls + step - 1) / step);
}

TEST_CASE("what is written behind the steps costs no state and no history either", "[storage_faults]") {
  const auto stops = disk_in_background("stop"), goes_on = disk_in_background("go_on");
  sweep(*stops, false, "background", short_write(), {.first = 2, .stride = 3});
  sweep(*goes_on, false, "background", fault_of(DiskFault::Kind::error, ENOSPC), {.first = 0, .stride = 17});
}

TEST_CASE("power that goes at any call costs no checkpoint and no history", "[power_cuts]") {
  cut_power(*fresh_disk(), false, "power cut", 0);
  cut_power(*interrupted_disk(), true, "power cut", 1);
  cut_power(*disk_in_background("stop"), false, "background", 2);
}

TEST_CASE("a disk that stores other bits than it was given spoils no checkpoint", "[storage_faults]") {
  const auto before = fresh_disk();
  const std::int64_t writes = calls_of(*before, false, Call::write);
  int caught = 0;
  for (std::int64_t call = 0; call < writes; ++call) {
    const auto disk = before->copy();
    DiskFault fault = fault_of(DiskFault::Kind::flipped_write, 0, Call::write);
    fault.call = call;
    disk->set_fault(fault);
    const std::string said = session(*disk, false);
    INFO(fmt::format("call {}: {}", call, said));
    if (said.find("is not what was written to it") != std::string::npos) ++caught;
    const StorageInstead instead(*disk);
    for (const std::string& checkpoint : complete_checkpoints(kPaths.checkpoints())) {
      for (const CheckpointFile& file : read_manifest(checkpoint).files) {
        CHECK(fingerprint(disk->read(checkpoint + "/" + file.name)) == file.hash);
      }
    }
  }
  CHECK(caught > 4);  // two layers and a manifest for each of four steps
}

TEST_CASE("a disk that fills up while a checkpoint is written is not left full of it", "[storage_faults]") {
  const auto before = fresh_disk();
  const std::int64_t calls = calls_of(*before, false);
  for (std::int64_t call = calls / 3; call < calls; call += test::stride<std::int64_t>(19)) {
    const auto disk = before->copy();
    disk->set_fault({DiskFault::Kind::error, call, ENOSPC});
    if (session(*disk, false).empty()) continue;
    for (const std::string& path : disk->files()) {
      INFO(path);
      CHECK(path.find(".part") == std::string::npos);
    }
  }
}

TEST_CASE("a disk without room for the checkpoints of a run is refused before the first step",
          "[storage_faults]") {
  const auto disk = fresh_disk();
  const std::uint64_t each =
      3 * 4 * (4 * 6 + 6 + 6 * 3 + 3);  // AdamW: parameters and two tensors of their size
  disk->set_space(2 * each - 1);
  const std::string said = session(*disk, false);
  CHECK(said.find("/runs/one/checkpoints: 2 checkpoints of ") == 0);
  CHECK(said.find("are left on this disk") != std::string::npos);
  CHECK(disk->read(kPaths.metrics()).empty());
  disk->set_space(2 * each);
  CHECK(session(*disk, true).empty());
  // What is there already needs no room.
  const auto resumed = interrupted_disk();
  resumed->set_space(each);
  CHECK(session(*resumed, true).empty());
}

TEST_CASE("what a run did not make stays as it is through a resume, whatever its name and place",
          "[storage_faults]") {
  const auto before = interrupted_disk();
  const std::vector<std::string> names{"film.mkv.part",
                                       "config.json.part",
                                       "film.0123456789abcdef.part",
                                       "backup.part/x",
                                       "notes",
                                       "logs/mine.log",
                                       "logs/film.part",
                                       "checkpoints/film.part",
                                       "checkpoints/step-00000100.part/x",
                                       "checkpoints/step-100.0123456789abcdef.part/x",
                                       "checkpoints/step-00000100/pytorch_model.bin",
                                       "checkpoints/step-7/data",
                                       "checkpoints/mine/manifest.json"};
  for (const std::string& name : names) {
    CAPTURE(name);
    const auto disk = before->copy();
    const std::string path = "/runs/one/" + name;
    disk->write(path, "mine");
    CHECK(session(*disk, true) == "");
    CHECK(disk->read(path) == "mine");
    const Left left = test::left_on(*disk);
    CHECK(left.state == undisturbed().state);
  }
  // In the place of a checkpoint to come it gets another name.
  const auto disk = before->copy();
  disk->write("/runs/one/checkpoints/step-00000004/pytorch_model.bin", "mine");
  CHECK(session(*disk, true) == "");
  CHECK(disk->read("/runs/one/checkpoints/step-00000004.earlier-1/pytorch_model.bin") == "mine");
}

TEST_CASE("a failed save says why it failed first, whichever rank meets the full disk", "[storage_faults]") {
  const auto before = fresh_disk();
  const std::int64_t calls = calls_of(*before, false);
  for (std::int64_t call = calls / 3; call < calls; call += test::stride<std::int64_t>(13)) {
    const auto disk = before->copy();
    disk->set_fault({DiskFault::Kind::error, call, ENOSPC});
    const std::string said = session(*disk, false);
    INFO(fmt::format("call {}: {}", call, said));
    if (said.empty()) continue;
    CHECK((said.find("No space left on device") != std::string::npos ||
           said.find("corrupt") != std::string::npos));
    CHECK(said.find("No such file") == std::string::npos);
  }
}

// A disk that hangs leaves threads that never end, so each such session is a process of its own.

TEST_CASE("a session on a disk that hangs", "[.hanging_session]") {
  const char* const call = std::getenv("HANG_CALL");
  REQUIRE(call != nullptr);
  const auto disk = disk_with_run([](Json& config) {
    config["checkpoint"]["on_failure"] = "stop";
    config["comms"] = {{"timeout_s", 1}, {"save_timeout_s", 1}, {"start_up_timeout_s", 1}};
  });
  const bool all = std::getenv("HANG_ALL") != nullptr;
  disk->set_fault({all ? DiskFault::Kind::hang_all : DiskFault::Kind::hang, std::atoll(call), 0,
                   /*on_other_threads=*/true});
  const std::string said = session(*disk, false);
  std::_Exit(said.empty() ? 0 : 2);
}

TEST_CASE("a disk that hangs ends the run within its timeouts, whichever call it is", "[hung_disk]") {
  const auto counted = fresh_disk();
  counted->set_fault({DiskFault::Kind::none, 0, 0, /*on_other_threads=*/true});
  REQUIRE(session(*counted, false).empty());
  const std::int64_t calls = counted->calls();
  const std::int64_t step = test::stride<std::int64_t>(29);
  struct Child {
    std::int64_t call;
    bool all;
    pid_t process;
    std::chrono::steady_clock::time_point begun;
  };
  constexpr std::size_t kAtOnce = 8;  // they wait, mostly
  constexpr double kLongest = 40;     // seconds: two saves, the grace for other threads, a busy machine
  std::vector<Child> running;
  std::map<int, int> codes;
  const auto reap = [&] {
    std::erase_if(running, [&](const Child& child) {
      int status = 0;
      if (::waitpid(child.process, &status, WNOHANG) == 0) {
        const std::chrono::duration<double> age = std::chrono::steady_clock::now() - child.begun;
        if (age.count() < kLongest) return false;
        ::kill(child.process, SIGKILL);
        ::waitpid(child.process, &status, 0);
      }
      INFO(fmt::format("call {} of {}, {}", child.call, calls, child.all ? "and all behind it" : "alone"));
      const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
      CHECK((code == 0 || code == 2 || code == 4));
      ++codes[code];
      return true;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  };
  for (const bool all : {false, true}) {
    for (std::int64_t call = all ? step / 2 : 0; call < calls; call += all ? 2 * step : step) {
      while (running.size() >= kAtOnce) reap();
      ::setenv("HANG_CALL", std::to_string(call).c_str(), 1);
      if (all) ::setenv("HANG_ALL", "1", 1);
      std::cout.flush();
      const pid_t process = ::fork();
      REQUIRE(process >= 0);
      if (process == 0) {
        const int nowhere = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
        ::dup2(nowhere, STDOUT_FILENO);
        ::dup2(nowhere, STDERR_FILENO);
        ::execl("/proc/self/exe", "test_storage", "[.hanging_session]", static_cast<char*>(nullptr));
        ::_exit(127);
      }
      running.push_back({call, all, process, std::chrono::steady_clock::now()});
    }
  }
  while (!running.empty()) reap();
  CHECK(codes[4] > 0);
  std::cout << fmt::format("hung disk: {} calls, codes 0: {}, 2: {}, 4: {}, none: {}\n", calls, codes[0],
                           codes[2], codes[4], codes[-1]);
}
