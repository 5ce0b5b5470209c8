#include "engine/run/show/live_record.h"

#include "base/files.h"
#include "engine/transport/cores.h"
#include "engine/transport/quiet_thread.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

namespace stagecraft {
namespace {

constexpr std::chrono::seconds kNow{0};
/// All ranks write at about the same time.
constexpr std::chrono::seconds kOthersWrite{2};
/// For a disk that hangs.
constexpr std::chrono::seconds kPatience{5};
/// Of the newest steps so many are shown that they are some hundred kilobytes.
constexpr std::size_t kMostEvents = 4000;

/// The newest steps with at most kMostEvents, and the newest in any case.
std::vector<Event> newest(const std::vector<Event>& events) {
  std::size_t first = events.size();
  while (first > 0) {
    std::size_t begin = first;
    while (begin > 0 && events[begin - 1].step == events[first - 1].step) --begin;
    if (first < events.size() && events.size() - begin > kMostEvents) break;
    first = begin;
  }
  return {events.begin() + static_cast<std::ptrdiff_t>(first), events.end()};
}

}  // namespace

RankRecord rank_record(const RunSetup& setup, Rank rank, const Worker& worker,
                       const ClockMeetings& meetings) {
  return {.rank = rank,
          .name = setup.rank_name(rank),
          .boot = transport::boot_id(),
          .origin = worker.clock_origin(),
          .meetings = meetings.times(),
          .peak = worker.peak_bytes(),
          .core_share = worker.core_share(),
          .events = worker.events()};
}

LiveRecord::LiveRecord(const RunSetup& setup, const RunPaths& paths, Rank rank)
    : setup_(setup),
      rank_(rank),
      path_(paths.live(rank)),
      shares_path_(paths.shares(rank)),
      keeps_timeline_(setup.config().log.timeline_steps > 0),
      times_(setup.start().step, LiveTimes::Clock::now()) {
  try {
    if (setup.start().step > 0) shares_ = ShareHistory::from(json::parse_file(shares_path_), shares_path_);
  } catch (const InputError&) {
    // Of no use for the run: it begins anew.
  }
  shares_.forget_from(setup.start().step);
  if (rank == setup.reporter() && setup.world() > 1)
    slow_ = std::make_shared<SlowRanks>(slow_ranks_of(setup, paths));
}

void LiveRecord::steps_made(std::int64_t before, std::int64_t after, bool asked, const Worker& worker,
                            const ClockMeetings& meetings) {
  if (!keeps_timeline_ || !times_.due(before, after, asked, LiveTimes::Clock::now())) return;
  RankRecord record = rank_record(setup_, rank_, worker, meetings);
  record.events = newest(record.events);
  shares_.add(record.events);
  // A disk that is slow is left in peace.
  if (!rested(kNow)) return;
  std::promise<Written> promise;
  writing_ = promise.get_future();
  transport::quiet_thread("live record", [path = path_, record = std::move(record),
                                          shares_path = shares_path_, shares = shares_, slow = slow_,
                                          ending = ending_,
                                          done =
                                              std::make_shared<std::promise<Written>>(std::move(promise))] {
    Written written;
    try {
      make_folder(folder_of(path));
      write_file_atomically(path, record_json(record).dump(), Links::replace);
      make_folder(folder_of(shares_path));
      write_file_atomically(shares_path, shares.json().dump(), Links::replace);
      if (slow != nullptr)
        written.slow = slow->look([ending, until = LiveTimes::Clock::now() + kOthersWrite] {
          return !*ending && LiveTimes::Clock::now() < until;
        });
    } catch (const TakenOverError&) {
      written.taken = std::current_exception();
    } catch (const std::exception& error) {
      written.failure = error.what();
    }
    done->set_value(std::move(written));
  }).detach();
}

LiveRecord::~LiveRecord() {
  *ending_ = true;
  (void)rested(kPatience);
}

bool LiveRecord::rested(std::chrono::seconds patience) const {
  return !writing_.valid() || writing_.wait_for(patience) == std::future_status::ready;
}

void LiveRecord::finish(const Worker& worker) noexcept try {
  *ending_ = true;
  if (!rested(kPatience)) return;
  (void)storage().remove(path_);
  if (!keeps_timeline_ || shares_.entries().empty()) return;  // too short to have a course
  shares_.add(newest(worker.events()));
  write_file_atomically(shares_path_, shares_.json().dump(), Links::replace);
} catch (const std::exception&) {
  // The run is over: what is drawn of it is less than the run.
}

std::string LiveRecord::news() {
  if (!writing_.valid() || !rested(kNow)) return "";
  Written written = writing_.get();
  if (written.taken) std::rethrow_exception(written.taken);
  if (written.slow.better) better_ = std::move(written.slow.better);
  if (written.failure.empty()) return written.slow.text;
  if (std::exchange(failed_, true)) return "";
  return "the last steps cannot be shown: " + written.failure;
}

}  // namespace stagecraft
