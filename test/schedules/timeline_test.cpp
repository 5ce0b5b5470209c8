#include "schedules/program/timeline.h"

#include "base/error.h"
#include "base/json.h"
#include "schedules/interchange/chrome_trace.h"
#include "test/support/catch.h"

#include <string>
#include <vector>

using namespace stagecraft;

namespace {

Event make_event(int rank, Op op, double begin, double end) {
  Event event;
  event.rank = Rank{rank};
  event.action.op = op;
  event.action.stage = StageId{rank};
  event.begin = Seconds{begin};
  event.end = Seconds{end};
  return event;
}

Event compute(int rank, Op op, int micro_batch, double begin, double end) {
  Event event = make_event(rank, op, begin, end);
  event.action.micro_batch = MicroBatch{micro_batch};
  event.action.version = Version{2};
  event.action.group = Group{1};
  event.action.slot = Slot{0};
  event.step = 1;
  return event;
}

Event transfer(int rank, Op op, Event::Lane lane, Tag tag, double begin, double end) {
  Event event = make_event(rank, op, begin, end);
  event.action.tag = tag;
  event.lane = lane;
  return event;
}

Tag tag_of(Payload payload, int from, int to, int micro_batch) {
  return Tag{payload, StageId{from}, StageId{to}, micro_batch, 0};
}

Event sum_under_way(int rank, Op op, double begin, double end) {
  Event event = make_event(rank, op, begin, end);
  if (op == Op::tie) event.action.tie = TieId{1};
  event.lane = Event::Lane::send;
  event.action.group = Group{1};
  event.bytes = Bytes{4096};
  return event;
}

/// Two ranks, one event of most kinds.
Timeline sample() {
  Timeline timeline;
  timeline.title = "2 stages <& more> \"quoted\"";
  timeline.rank_names = {"rank 0: stage 0", "rank 1: stage 1"};
  timeline.events = {
      compute(0, Op::forward, 3, 0, 1e-3),
      transfer(0, Op::start_send, Event::Lane::send, tag_of(Payload::activation, 0, 1, 3), 1e-3, 1.5e-3),
      transfer(0, Op::wait_receive, Event::Lane::compute, tag_of(Payload::gradient, 1, 0, 3), 1e-3, 5e-3),
      compute(0, Op::backward, 3, 5e-3, 7e-3),
      sum_under_way(0, Op::reduce, 5.5e-3, 7.125e-3),
      sum_under_way(0, Op::tie, 6e-3, 7.125e-3),
      make_event(0, Op::step, 7e-3, 7.25e-3),
      transfer(1, Op::wait_receive, Event::Lane::compute, tag_of(Payload::activation, 0, 1, 3), 0, 1.5e-3),
      compute(1, Op::forward, 3, 1.5e-3, 2.5e-3),
      compute(1, Op::backward_input, 3, 2.5e-3, 3.5e-3),
      transfer(1, Op::start_send, Event::Lane::send, tag_of(Payload::gradient, 1, 0, 3), 3.5e-3, 5e-3),
      compute(1, Op::backward_weight, 3, 3.5e-3, 4.5e-3),
  };
  return timeline;
}

}  // namespace

TEST_CASE("an event is named for what it does and what it waits for", "[timeline]") {
  CHECK(event_name(compute(0, Op::forward, 3, 0, 1)) == "F3");
  CHECK(event_name(compute(1, Op::backward_weight, 12, 0, 1), true) == "1W12");
  CHECK(event_name(transfer(0, Op::wait_receive, Event::Lane::compute, tag_of(Payload::gradient, 1, 0, 3), 0,
                            1)) == "wait: gradient 3 from stage 1");
  CHECK(event_name(transfer(0, Op::wait_send, Event::Lane::compute, tag_of(Payload::activation, 0, 1, 3), 0,
                            1)) == "wait: activation 3 taken by stage 1");
  CHECK(event_name(transfer(0, Op::start_send, Event::Lane::send, tag_of(Payload::activation, 0, 1, 3), 0,
                            1)) == "activation 3 to stage 1");
  CHECK(event_kind(transfer(0, Op::start_send, Event::Lane::compute, {}, 0, 1)) == EventKind::wait);
  CHECK(event_kind(transfer(0, Op::start_send, Event::Lane::send, {}, 0, 1)) == EventKind::transfer);
  CHECK(event_kind(make_event(0, Op::agree_norm, 0, 1)) == EventKind::collective);
  CHECK(event_kind(sum_under_way(0, Op::reduce, 0, 1)) == EventKind::transfer);
  CHECK(event_name(sum_under_way(0, Op::reduce, 0, 1)) == "sum under way: reduce 1");
  CHECK(event_name(sum_under_way(0, Op::tie, 0, 1)) == "sum under way: tie 1.1");
}

TEST_CASE("names carry the stage only where a rank holds several", "[timeline]") {
  Timeline timeline = sample();
  CHECK(holds_several_stages(timeline) == std::vector<bool>{false, false});
  timeline.events.front().action.stage = StageId{2};
  CHECK(holds_several_stages(timeline) == std::vector<bool>{true, false});
  CHECK(to_chrome_trace(timeline).dump().find("\"2F3\"") != std::string::npos);
}

TEST_CASE("a trace reads back as it was", "[timeline]") {
  const Timeline written = sample();
  // Through text, as a file would go.
  const Timeline read =
      timeline_from_chrome_trace(json::parse_text(to_chrome_trace(written).dump(), "t.json"), "t.json");
  CHECK(read.title == written.title);
  CHECK(read.rank_names == written.rank_names);
  REQUIRE(read.events.size() == written.events.size());
  for (std::size_t i = 0; i < read.events.size(); ++i) {
    INFO("event " << i);
    CHECK(read.events[i].rank == written.events[i].rank);
    CHECK(read.events[i].lane == written.events[i].lane);
    CHECK((read.events[i].action == written.events[i].action));
    CHECK(read.events[i].step == written.events[i].step);
    CHECK(read.events[i].bytes == written.events[i].bytes);
    CHECK(read.events[i].begin.value == Approx(written.events[i].begin.value).margin(1e-12));
    CHECK(read.events[i].end.value == Approx(written.events[i].end.value).margin(1e-12));
  }
}

TEST_CASE("steps are counted beyond 2^31", "[timeline]") {
  Timeline written = sample();
  written.events.back().step = 5'000'000'000;
  const Timeline read = timeline_from_chrome_trace(to_chrome_trace(written), "t.json");
  CHECK(read.events.back().step == 5'000'000'000);
}

TEST_CASE("a trace has what Perfetto shows: processes, lanes, microseconds", "[timeline]") {
  const Json trace = to_chrome_trace(sample());
  int processes = 0;
  int threads = 0;
  const Json* wait = nullptr;
  for (const Json& event : trace["traceEvents"]) {
    REQUIRE(event.contains("ph"));
    CHECK(event["pid"].get<int>() >= 1);  // Perfetto takes process 0 for the kernel's
    if (event["name"] == "process_name") ++processes;
    if (event["name"] == "thread_name") ++threads;
    if (event["name"] == "wait: gradient 3 from stage 1") wait = &event;
  }
  CHECK(processes == 2);
  CHECK(threads == 6);
  REQUIRE(wait != nullptr);
  CHECK((*wait)["ph"] == "X");
  CHECK((*wait)["cat"] == "wait");
  CHECK((*wait)["ts"].get<double>() == Approx(1000.0));
  CHECK((*wait)["dur"].get<double>() == Approx(4000.0));
}

TEST_CASE("a trace that is not ours is refused with the place", "[timeline]") {
  const auto message = [](Json json) {
    try {
      (void)timeline_from_chrome_trace(json, "t.json");
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  CHECK(message(Json::array()) == "t.json: not a \"stagecraft timeline 1\" trace");
  CHECK(message(Json{{"traceEvents", Json::array()}}) == "t.json: not a \"stagecraft timeline 1\" trace");
  CHECK(message(Json{{"traceEvents", Json::array()}, {"otherData", 3}}) ==
        "t.json: not a \"stagecraft timeline 1\" trace");
  const Json good = to_chrome_trace(sample());
  Json bad = good;
  const std::size_t last = bad["traceEvents"].size() - 1;
  const std::string pointer = "/traceEvents/" + std::to_string(last);
  bad["traceEvents"][last]["args"]["op"] = "forwards";
  CHECK(message(bad).find("t.json: " + pointer + "/args/op") == 0);
  CHECK(message(bad).find("did you mean \"forward\"?") != std::string::npos);
  bad = good;
  bad["traceEvents"][last]["dur"] = -1;
  CHECK(message(bad).find(pointer + "/dur") != std::string::npos);
  bad = good;
  bad["traceEvents"][last]["ts"] = 1e300;
  CHECK(message(bad).find(pointer + "/ts: expected at least") != std::string::npos);
  // A picture has an entry for each rank below the highest: 16 GiB for this one event.
  bad = good;
  bad["traceEvents"][last]["args"]["rank"] = 2147483646;
  CHECK(message(bad) ==
        "t.json: " + pointer + "/args/rank: expected at least 0 and at most 999999, found 2147483646");
  bad["traceEvents"][last]["args"]["rank"] = 999999;
  CHECK(message(bad) == "accepted");
  bad = good;
  bad["traceEvents"][last]["args"]["step"] = -1;
  CHECK(message(bad).find(pointer + "/args/step: expected at least 0") != std::string::npos);
  bad = good;
  bad["traceEvents"][last]["args"].erase("rank");
  CHECK(message(bad).find("rank") != std::string::npos);
  bad = good;
  bad["traceEvents"][last] = 7;
  CHECK(message(bad).find(pointer) != std::string::npos);
  bad = good;
  bad["otherData"]["rank_names"] = "x";
  CHECK(message(bad).find("/otherData/rank_names") != std::string::npos);
}
