// A run that is stopped at its n-th call of the disk, for every n, while another start takes its directory, and then
// wakes up: nothing that it does is of any effect, and it says who took over.

#include "base/error.h"
#include "base/failure.h"
#include "base/json.h"
#include "engine/records/metrics/run_holder.h"
#include "engine/run/save/checkpoint_folder.h"
#include "engine/run/save/run_dir.h"
#include "engine/run/start/train.h"
#include "test/engine/stored_run.h"
#include "test/engine/taken_over.h"
#include "test/support/catch.h"
#include "test/support/full.h"
#include "test/support/simulated_disk.h"

#include <fmt/format.h>

#include <cstdlib>
#include <functional>
#include <iostream>
#include <memory>

using namespace stagecraft;
using test::check_untouched;
using test::Contents;
using test::contents_of;
using test::disk_with_run;
using test::DiskFault;
using test::kElsewhere;
using test::kHere;
using test::SimulatedDisk;
using test::take_over;

namespace {

std::unique_ptr<SimulatedDisk> copy_of(const SimulatedDisk& before) {
  auto disk = before.copy();
  test::share(*disk);
  return disk;
}

/// What a session came to: code 0 for its end.
Failure session(SimulatedDisk& disk, bool resume) {
  try {
    (void)train_on(disk, resume);
    return {.code = 0, .message = ""};
  } catch (...) {
    return failure_of(std::current_exception());
  }
}

struct Kind {
  const char* name;
  bool resume;
  std::function<void(Json&)> change;
};

}  // namespace

TEST_CASE("a start that wakes up behind another one changes nothing, whatever it was at", "[fencing]") {
  const std::vector<Kind> kinds{
      {"fresh", false, [](Json&) {}},
      {"resumed", true, [](Json&) {}},
      {"background", false, [](Json& config) { config["checkpoint"]["in_background"] = true; }},
  };
  for (const Kind& kind : kinds) {
    const auto before = disk_with_run(kind.change);
    const auto undisturbed = copy_of(*before);
    REQUIRE(session(*undisturbed, false).code == 0);
    const std::string last = checkpoint_path(kHere + "/checkpoints", 4);
    if (kind.resume) {
      Json config = json::parse_text(before->read("/run.json"), "config");
      config["train_steps"] = 2;
      before->write("/run.json", config.dump());
      REQUIRE(session(*before, false).code == 0);
      config["train_steps"] = 4;
      before->write("/run.json", config.dump());
    }
    const auto counted = copy_of(*before);
    counted->set_fault({});
    REQUIRE(session(*counted, kind.resume).code == 0);
    const std::int64_t calls = counted->calls();
    const std::int64_t stride = test::stride<std::int64_t>(13);
    int stopped = 0, ended = 0, tried = 0;
    for (std::int64_t call = 0; call < calls; call += stride) {
      INFO(fmt::format("{}, call {} of {}", kind.name, call, calls));
      const auto disk = copy_of(*before);
      std::unique_ptr<RunDirectory> taker;
      Contents theirs;
      std::string newest;
      DiskFault fault{DiskFault::Kind::stopped, call};
      fault.meanwhile = [&] {
        try {
          taker = take_over();
        } catch (const InputError&) {  // the first one is only beginning to make the folder its own
          return;
        }
        theirs = contents_of(*disk);
        newest = newest_checkpoint(kElsewhere + "/checkpoints");
        if (!newest.empty()) newest.replace(0, kElsewhere.size(), kHere);
      };
      disk->set_fault(fault);
      const Failure failure = session(*disk, kind.resume);
      const std::string lock = disk->read(kHere + "/.lock");
      if (taker && lock.find(taker->paths().session) != std::string::npos) {
        ++tried;
        check_untouched(theirs, contents_of(*disk), newest);
        INFO(failure.message);
        RunHolder holder;
        holder.session = taker->paths().session;
        const std::string sentence =
            fmt::format("/runs/one: was taken over by start {} of the run (process ", start_number(holder));
        if (failure.code == 0) {
          ++ended;  // nothing was left to write
        } else {
          ++stopped;
          CHECK(failure.code == exit_code::kPeer);
          CHECK(failure.message.find(sentence) != std::string::npos);
          CHECK(failure.message.find('\n') == std::string::npos);
        }
      }
      taker.reset();
      disk->set_fault({});
      const Failure after = session(*disk, true);
      CHECK(after.message.empty());
      for (const std::string& path : undisturbed->files()) {
        INFO(path);
        if (path.starts_with(last) && path.ends_with(".safetensors"))
          CHECK(disk->read(path) == undisturbed->read(path));
      }
    }
    CHECK(stopped * 10 > tried * 9);
    std::cout << fmt::format("{:<12} {:>4} calls, {:>3} tried: {:>3} stopped, {:>2} had ended\n", kind.name,
                             calls, tried, stopped, ended);
  }
}
