#include "schedules/interchange/chrome_trace.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

namespace stagecraft {

template <>
inline constexpr std::array enum_names<Event::Lane>{"compute", "send", "receive"};

namespace {

constexpr const char* kFormat = "stagecraft timeline 1";
// As many as a cluster has at most; a picture has an entry for each rank below the highest.
constexpr double kHighestRank = 999'999;
constexpr double kMostMicroseconds = 1e18;  // 30,000 years

/// An event's own fields as they travel in `args`; those an op does not use are left out.
struct TraceArgs : Event {};

void describe(auto& v, TraceArgs& a) {
  v.required("rank", a.rank, "whose event it is", json::between(0, kHighestRank));
  v.required("lane", a.lane, "compute, send or receive");
  v.required("op", a.action.op, "the action");
  v.required("step", a.step, "optimizer step of the run", json::at_least(0));
  json::optional_id(v, "stage", a.action.stage, "of the action");
  json::optional_id(v, "micro_batch", a.action.micro_batch, "of the action");
  json::optional_id(v, "version", a.action.version, "weights read");
  json::optional_id(v, "group", a.action.group, "accumulation");
  json::optional_id(v, "slot", a.action.slot, "receive buffer");
  json::optional_id(v, "tie", a.action.tie, "the tied weight");
  std::optional<std::int64_t> bytes = a.bytes > Bytes{} ? std::optional(a.bytes.value) : std::nullopt;
  v.optional("bytes", bytes, "of a sum under way", json::at_least(0));
  a.bytes = Bytes{bytes.value_or(0)};
  Tag& tag = a.action.tag;
  std::optional<Payload> payload = is_transfer(a.action.op) ? std::optional(tag.payload) : std::nullopt;
  v.optional("payload", payload, "what a transfer carries");
  tag.payload = payload.value_or(Payload::activation);
  json::optional_id(v, "from", tag.from, "stage that sends");
  json::optional_id(v, "to", tag.to, "stage that receives");
  MicroBatch number{tag.number};
  json::optional_id(v, "tag_micro_batch", number, "of the transfer; for a loss the group");
  std::optional<int> index = tag.index != 0 ? std::optional(tag.index) : std::nullopt;
  v.optional("tag_index", index, "tensor of the boundary");
  tag.number = number.value;
  tag.index = index.value_or(0);
}

/// One complete event. Times are microseconds, as the format has it.
struct TraceEvent {
  std::string name;
  std::string category;
  std::string phase = "X";
  int process = 0;
  int thread = 0;
  double begin_us = 0;
  double duration_us = 0;
  TraceArgs args;
};

void describe(auto& v, TraceEvent& e) {
  v.required("name", e.name, "shown");
  v.required("cat", e.category, "for filters");
  v.required("ph", e.phase, "X: a complete event");
  v.required("pid", e.process, "rank + 1");
  v.required("tid", e.thread, "lane + 1");
  v.required("ts", e.begin_us, "begin, us", json::between(-kMostMicroseconds, kMostMicroseconds));
  v.required("dur", e.duration_us, "duration, us", json::between(0, kMostMicroseconds));
  v.required("args", e.args, "the event's own fields");
}

TraceArgs args_of(const Event& event) {
  TraceArgs args{event};
  if (!is_transfer(event.action.op)) args.action.tag = {};
  return args;
}

Event event_of(const TraceEvent& trace) {
  Event event = trace.args;
  event.begin = Seconds{trace.begin_us / 1e6};
  event.end = Seconds{(trace.begin_us + trace.duration_us) / 1e6};
  return event;
}

/// Perfetto shows process 0 as the kernel's idle task, so ranks and lanes count from 1 there.
int process_of(Rank rank) { return rank.value + 1; }
int thread_of(Event::Lane lane) { return static_cast<int>(lane) + 1; }

Json metadata(const char* what, Rank rank, int thread, Json args) {
  return Json{
      {"name", what}, {"ph", "M"}, {"pid", process_of(rank)}, {"tid", thread}, {"args", std::move(args)}};
}

}  // namespace

Json to_chrome_trace(const Timeline& timeline) {
  Json events = Json::array();
  for (std::size_t r = 0; r < timeline.rank_names.size(); ++r) {
    const Rank rank{r};
    events.push_back(metadata("process_name", rank, 0, Json{{"name", timeline.rank_names[r]}}));
    events.push_back(metadata("process_sort_index", rank, 0, Json{{"sort_index", r}}));
    for (const Event::Lane lane : {Event::Lane::compute, Event::Lane::send, Event::Lane::receive}) {
      events.push_back(metadata("thread_name", rank, thread_of(lane), Json{{"name", enum_name(lane)}}));
      events.push_back(
          metadata("thread_sort_index", rank, thread_of(lane), Json{{"sort_index", thread_of(lane)}}));
    }
  }
  const std::vector<bool> several = holds_several_stages(timeline);
  for (const Event& event : timeline.events) {
    events.push_back(
        json::write(TraceEvent{event_name(event, several[event.rank.index()]), enum_name(event_kind(event)),
                               "X", process_of(event.rank), thread_of(event.lane), event.begin.value * 1e6,
                               (event.end - event.begin).value * 1e6, args_of(event)}));
  }
  return Json{
      {"displayTimeUnit", "ms"},
      {"otherData", {{"format", kFormat}, {"title", timeline.title}, {"rank_names", timeline.rank_names}}},
      {"traceEvents", std::move(events)}};
}

Timeline timeline_from_chrome_trace(const Json& json, const std::string& file) {
  if (!json.is_object() || !json.contains("traceEvents") || !json["traceEvents"].is_array() ||
      !json.contains("otherData") || !json["otherData"].is_object() ||
      json["otherData"].value("format", Json()) != kFormat) {
    throw InputError(InputPlace{file, ""}, fmt::format("not a \"{}\" trace", kFormat));
  }
  Timeline timeline;
  const Json& data = json["otherData"];
  json::read_value(data.value("title", Json("")), InputPlace{file, "/otherData/title"}, timeline.title, {});
  json::read_value(data.value("rank_names", Json::array()), InputPlace{file, "/otherData/rank_names"},
                   timeline.rank_names, {});
  const Json& events = json["traceEvents"];
  for (std::size_t i = 0; i < events.size(); ++i) {
    if (events[i].is_object() && events[i].value("ph", Json()) == "M") continue;
    timeline.events.push_back(
        event_of(json::read<TraceEvent>(events[i], InputPlace{file, fmt::format("/traceEvents/{}", i)})));
  }
  return timeline;
}

}  // namespace stagecraft
