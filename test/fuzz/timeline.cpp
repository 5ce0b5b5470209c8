// timeline.json: what is read is written and read back with the same events, and can be reported and drawn.

#include "base/error.h"
#include "base/json.h"
#include "schedules/interchange/chrome_trace.h"
#include "test/fuzz/json_changes.h"
#include "test/fuzz/judge_run.h"
#include "test/fuzz/target.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>

namespace stagecraft::fuzz {
namespace {

/// Times pass through microseconds and a difference: all but the last digits.
bool close(Seconds a, Seconds b) {
  return std::abs(a.value - b.value) <= 1e-9 * std::max(std::abs(a.value), std::abs(b.value));
}

void require_same(const Timeline& a, const Timeline& b) {
  require(a.title == b.title && a.rank_names == b.rank_names, "names read back");
  require(a.events.size() == b.events.size(), "events read back");
  for (std::size_t i = 0; i < a.events.size(); ++i) {
    const Event& one = a.events[i];
    const Event& other = b.events[i];
    require(one.rank == other.rank && one.lane == other.lane && one.step == other.step,
            "an event reads back");
    require(one.action.op == other.action.op && one.action.stage == other.action.stage,
            "an action reads back");
    require(close(one.begin, other.begin) && close(one.end, other.end), "times read back");
  }
}

}  // namespace
}  // namespace stagecraft::fuzz

FUZZ_MUTATOR(timeline) { return stagecraft::fuzz::mutate_json(data, size, max_size, seed); }

FUZZ_TARGET(timeline) {
  using namespace stagecraft;
  static RunFiles run = fuzz::empty_run();
  try {
    run.timeline = timeline_from_chrome_trace(json::parse_text(std::string(data, data + size), "x"), "x");
  } catch (const InputError&) {
    return 0;
  }
  fuzz::accepted();
  const std::string written = to_chrome_trace(run.timeline).dump();
  fuzz::require_same(run.timeline, timeline_from_chrome_trace(json::parse_text(written, "y"), "y"));
  if (fuzz::choice_of(data, size) % fuzz::kReportOneOf == 0) fuzz::judge(run);
  return 0;
}
