// Clocks of machines beside each other: any offset and any drift, with barriers that ranks leave at random times.

#include "engine/run/show/clock_meetings.h"

#include "engine/records/report/clock_line.h"
#include "test/support/catch.h"

#include <cmath>
#include <random>
#include <vector>

using namespace stagecraft;

namespace {

struct Pair {
  std::vector<std::vector<Seconds>> theirs, ours;
};

/// Meetings at these times of our clock. Ranks leave a barrier up to `late` after each other.
Pair meet(const std::vector<double>& when, const auto& their_clock, double late) {
  std::mt19937_64 random(7);
  std::uniform_real_distribution<double> delay(0, late);
  Pair pair;
  for (const double at : when) {
    std::vector<Seconds> theirs, ours;
    for (std::size_t k = 0; k < ClockMeetings::kBarriers; ++k) {
      const double now = at + static_cast<double>(k) * 1e-4;
      ours.emplace_back(now + delay(random));
      theirs.emplace_back(their_clock(now + delay(random)));
    }
    pair.ours.push_back(ours);
    pair.theirs.push_back(theirs);
  }
  return pair;
}

}  // namespace

TEST_CASE("a clock that runs at another rate is set right at every time of the run", "[clock_meetings]") {
  for (const double ppm : {0.0, 1.0, 50.0, -50.0, 1000.0, -1000.0}) {
    for (const double offset : {0.0, 1000.0, -123456.5}) {
      const auto theirs = [&](double time) { return offset + time * (1 + ppm * 1e-6); };
      for (const std::vector<double>& when :
           {std::vector<double>{10, 3610}, {10, 100, 200, 3610}, {10, 10.5, 3600, 3610}}) {
        const Pair pair = meet(when, theirs, 20e-6);
        const ClockLine line(pair.theirs, pair.ours);
        for (double time = 10; time <= 3610; time += 97) {
          CHECK(std::abs(line(Seconds{theirs(time)}).value - time) < 25e-6);
        }
      }
    }
  }
}

TEST_CASE("a rate that changes is followed from meeting to meeting", "[clock_meetings]") {
  const auto theirs = [](double time) { return time + 5e-3 * std::sin(time / 600); };
  std::vector<double> when;
  for (double at = 0; at <= 3600; at += 60) when.push_back(at);
  const Pair pair = meet(when, theirs, 0);
  const ClockLine line(pair.theirs, pair.ours);
  for (double time = 0; time <= 3600; time += 7) {
    CHECK(std::abs(line(Seconds{theirs(time)}).value - time) < 10e-6);
  }
}

TEST_CASE("one meeting gives the offset, none gives the clock itself", "[clock_meetings]") {
  CHECK(ClockLine({}, {})(Seconds{5}) == Seconds{5});
  const Pair pair = meet(
      {7}, [](double time) { return time + 100; }, 0);
  CHECK(ClockLine(pair.theirs, pair.ours)(Seconds{200}).value == Approx(100));
}

TEST_CASE("a long run keeps its first and last meetings, and some between", "[clock_meetings]") {
  ClockMeetings meetings;
  for (int i = 0; i < 10'000; ++i) meetings.add({Seconds{static_cast<double>(i)}});
  CHECK(meetings.times().size() <= ClockMeetings::kMost);
  CHECK(meetings.times().size() > ClockMeetings::kMost / 3);
  CHECK(meetings.times().front().front() == Seconds{0});
  CHECK(meetings.times().back().front() == Seconds{9999});
}
