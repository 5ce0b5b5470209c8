#include "base/draws.h"
#include "base/failure.h"
#include "engine/run/start/train.h"
#include "engine/run/train/trainer.h"
#include "test/engine/left_on_disk.h"
#include "test/engine/stored_run.h"
#include "test/simulation/process.h"
#include "test/simulation/trial.h"

#include <fmt/format.h>

#include <array>
#include <cerrno>

namespace stagecraft::test {
namespace {

using schedule::kSecond;

/// Seconds: the bounds of all waits in a run.
constexpr int kBound = 20;
/// So long a process may take beside what it is held up: its bounds, and what it leaves others to end. Computing takes no
/// time.
constexpr schedule::Nanoseconds kLongest = (4 * kBound + 60) * kSecond;
constexpr std::array kSchedules{"fill_drain", "1f1b", "zb_h1", "zb_h2", "pipedream", "2bw"};

struct Kind {
  std::string schedule;
  int ranks = 1;
  bool in_background = false;
  std::string on_failure = "stop";

  [[nodiscard]] std::string name() const {
    return fmt::format("{}, {} ranks, checkpoints {}, on_failure {}", schedule, ranks,
                       in_background ? "in the background" : "in steps", on_failure);
  }
};

Kind any_kind(Draws& draws) {
  return {kSchedules.at(draws.below(kSchedules.size())), static_cast<int>(draws.between(1, 3)),
          draws.below(2) == 0, draws.below(2) == 0 ? "stop" : "go_on"};
}

std::unique_ptr<SimulatedDisk> disk_for(const Kind& kind) {
  return disk_with_run([&](Json& config) {
    std::vector<int> cuts;
    for (int cut = 1; cut < kind.ranks; ++cut) cuts.push_back(cut);
    config["model"]["hidden"] = {6, 5, 6};
    config["pipeline"] = {{"schedule", kind.schedule}, {"cuts", cuts}};
    config["checkpoint"]["in_background"] = kind.in_background;
    config["checkpoint"]["on_failure"] = kind.on_failure;
    config["comms"] = {{"timeout_s", kBound},
                       {"save_timeout_s", kBound},
                       {"start_up_timeout_s", kBound},
                       {"timeout_pause_s", kBound},
                       {"stop_timeout_s", kBound}};
    if (kind.schedule == "pipedream" || kind.schedule == "2bw") config["optimizer"] = {{"type", "SGD"}};
  });
}

/// `train --resume`.
int session(SimulatedDisk& disk, std::string& said) {
  TrainOutput output;
  output.report_exception = [&] { said = failure_of(std::current_exception()).message; };
  try {
    const TrainResult result = train_on(disk, /*resume=*/true, output);
    said = stopped_text(result.outcome);
    return said.empty() ? 0 : exit_code::kStopped;
  } catch (...) {
    const Failure failure = failure_of(std::current_exception());
    said = failure.message;
    return failure.code;
  }
}

/// A run that nobody disturbs: what it leaves, and how much it takes.
struct Undisturbed {
  Left left;
  std::int64_t disk_calls = 0, decisions = 0;
};

const Undisturbed& undisturbed(const Kind& kind) {
  static std::map<std::string, Undisturbed> known;
  const auto [place, fresh] = known.try_emplace(kind.name());
  if (!fresh) return place->second;
  auto disk = disk_for(kind);
  const Ended ended = run_process(disk, 0, {}, session);
  if (ended.code != 0) {
    known.erase(place);
    throw Wrong(fmt::format("{}: left alone it ends with {}: {}\n{}", kind.name(), ended.code, ended.said,
                            ended.errors));
  }
  place->second = {left_on(*disk), ended.disk_calls, ended.counts.decisions};
  return place->second;
}

/// One thing that is done to a process.
struct Mishap {
  std::string name;
  DiskFault fault{};
  schedule::Disturbance disturbance{};
  bool power_goes = false;
};

Mishap any_mishap(Draws& draws, const Undisturbed& whole) {
  // Beyond the end now and then: a resumed run does less.
  const std::int64_t call = draws.between(0, whole.disk_calls), decision = draws.between(0, whole.decisions);
  constexpr std::array kErrors{EIO, ENOSPC, EACCES, EROFS, EINTR};
  Mishap mishap;
  switch (draws.below(9)) {
    case 0:
      mishap.name = "disk errors";
      mishap.fault = {DiskFault::Kind::error, call, kErrors.at(draws.below(kErrors.size()))};
      break;
    case 1:
      mishap.name = "short writes";
      mishap.fault = {DiskFault::Kind::short_write, call};
      break;
    case 2:
      mishap.name = "power cuts";
      mishap.fault = {DiskFault::Kind::power_cut, call};
      mishap.power_goes = true;
      break;
    case 3:
      mishap.name = "power cuts";
      mishap.disturbance.kill_at = decision;
      mishap.power_goes = true;
      break;
    case 4:
      mishap.name = "kills";
      mishap.disturbance.kill_at = decision;
      break;
    case 5:
      mishap.name = "signals";
      mishap.disturbance.signal_at = decision;
      break;
    case 6:
      mishap.name = "short holds";
      mishap.disturbance.hold_at = decision;
      mishap.disturbance.hold = draws.between(1, kBound / 2) * kSecond;
      break;
    case 7:
      mishap.name = "long holds";
      mishap.disturbance.hold_at = decision;
      mishap.disturbance.hold = draws.between(kBound, 10 * kBound) * kSecond;
      break;
    default:
      mishap.name = "disk hangs";
      // Not for the thread that has not started the ranks yet: nobody is there to notice.
      mishap.fault = {draws.below(2) == 0 ? DiskFault::Kind::hang : DiskFault::Kind::hang_all, call, 0,
                      /*on_other_threads=*/true};
      break;
  }
  return mishap;
}

/// Of a process that something ended from outside, which says nothing.
bool is_silent(int code) { return code == schedule::kKilled || code == schedule::kTerminated; }

bool is_known(int code) {
  return code == 0 || code == exit_code::kInput || code == exit_code::kPeer || code == exit_code::kStopped ||
         is_silent(code);
}

/// A process that `mishap` happens to.
void disturb(const Kind& kind, std::unique_ptr<SimulatedDisk>& disk, Draws& draws, const Mishap& mishap,
             Trial& trial) {
  disk->set_fault(mishap.fault);
  const std::uint64_t seed = draws.next();
  const Ended ended = run_process(disk, seed, mishap.disturbance, session);
  const std::string where = fmt::format(
      "{}, {} (disk call {}, decision {})", kind.name(), mishap.name, mishap.fault.call,
      std::max({mishap.disturbance.kill_at, mishap.disturbance.signal_at, mishap.disturbance.hold_at}));
  trial.trace = mix(trial.trace, ended.counts.trace, static_cast<std::uint64_t>(ended.code));
  if (!is_known(ended.code)) {
    throw Wrong(fmt::format("{}: it ends with {}: {}\n{}", where, ended.code, ended.said, ended.errors));
  }
  const bool silent = ended.code != 0 && !is_silent(ended.code) && ended.said.empty();
  if (silent || ended.said.find('\n') != std::string::npos) {
    throw Wrong(fmt::format("{}: it ends with {} and says \"{}\"", where, ended.code, ended.said));
  }
  if (ended.counts.time > kLongest + mishap.disturbance.hold) {
    throw Wrong(
        fmt::format("{}: it ends with {} after {} s", where, ended.code, ended.counts.time / kSecond));
  }
  if (mishap.name == "short holds" && ended.code != 0) {
    throw Wrong(fmt::format("{}: it ends with {}: {}", where, ended.code, ended.said));
  }
  if (mishap.power_goes) disk->restart(draws.next());
  ++trial.seen[mishap.name];
  ++trial.seen[fmt::format("code {}", ended.code)];
}

}  // namespace

Trial hurt_run(std::uint64_t seed, bool forgetful) {
  Draws draws(mix(seed));
  const Kind kind = any_kind(draws);
  Trial trial{.name = "run, " + kind.schedule};
  const Undisturbed& whole = undisturbed(kind);
  auto disk = disk_for(kind);
  for (std::size_t left = 1 + draws.below(4); left > 0; --left) {
    disk->set_forgetful(forgetful);
    disturb(kind, disk, draws, any_mishap(draws, whole), trial);
  }
  const Ended last = run_process(disk, draws.next(), {}, session);
  trial.trace = mix(trial.trace, last.counts.trace);
  if (last.code != 0) {
    throw Wrong(fmt::format("{}: nobody disturbs it, and it ends with {}: {}\n{}", kind.name(), last.code,
                            last.said, last.errors));
  }
  const std::string other = difference(left_on(*disk), whole.left);
  if (!other.empty()) throw Wrong(fmt::format("{}: {}", kind.name(), other));
  ++trial.seen["runs"];
  return trial;
}

}  // namespace stagecraft::test
