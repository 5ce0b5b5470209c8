#include "stagecraft/schedules/interchange/chrome_trace.h"

#include "stagecraft/base/json.h"

#include <fmt/format.h>

#include <array>
#include <optional>
#include <string>
#include <utility>

namespace stagecraft {

template <>
struct EnumNames<Event::Lane> {
  static constexpr std::array values{std::pair{Event::Lane::compute, "compute"},
                                     std::pair{Event::Lane::send, "send"},
                                     std::pair{Event::Lane::receive, "receive"}};
};

namespace {

constexpr const char* kFormat = "stagecraft timeline 1";
// As many as a cluster has at most; a picture has an entry for each rank below the highest.
constexpr double kHighestRank = 999'999;
constexpr double kMostMicroseconds = 1e18;  // 30,000 years

/// An event's own fields as they travel in `args`; those an op does not use are left out.
struct TraceArgs {
  Rank rank;
  Event::Lane lane = Event::Lane::compute;
  Op op = Op::forward;
  std::int64_t step = 0;
  std::optional<StageId> stage;
  std::optional<MicroBatch> micro_batch;
  std::optional<Version> version;
  std::optional<Group> group;
  std::optional<Slot> slot;
  std::optional<Payload> payload;
  std::optional<StageId> from;
  std::optional<StageId> to;
  std::optional<MicroBatch> tag_micro_batch;
  std::optional<int> tag_index;
};

template <class V>
void describe(V& v, TraceArgs& a) {
  v.required("rank", a.rank, "whose event it is", json::between(0, kHighestRank));
  v.required("lane", a.lane, "compute, send or receive");
  v.required("op", a.op, "the action");
  v.required("step", a.step, "optimizer step of the run", json::at_least(0));
  v.optional("stage", a.stage, "of the action");
  v.optional("micro_batch", a.micro_batch, "of the action");
  v.optional("version", a.version, "weights read");
  v.optional("group", a.group, "accumulation");
  v.optional("slot", a.slot, "receive buffer");
  v.optional("payload", a.payload, "what a transfer carries");
  v.optional("from", a.from, "stage that sends");
  v.optional("to", a.to, "stage that receives");
  v.optional("tag_micro_batch", a.tag_micro_batch, "of the transfer; for a loss the group");
  v.optional("tag_index", a.tag_index, "tensor of the boundary");
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

template <class V>
void describe(V& v, TraceEvent& e) {
  v.required("name", e.name, "shown");
  v.required("cat", e.category, "for filters");
  v.required("ph", e.phase, "X: a complete event");
  v.required("pid", e.process, "rank + 1");
  v.required("tid", e.thread, "lane + 1");
  v.required("ts", e.begin_us, "begin, us", json::between(-kMostMicroseconds, kMostMicroseconds));
  v.required("dur", e.duration_us, "duration, us", json::between(0, kMostMicroseconds));
  v.required("args", e.args, "the event's own fields");
}

template <class Kind>
std::optional<Id<Kind>> if_valid(Id<Kind> id) {
  return id.valid() ? std::optional(id) : std::nullopt;
}

TraceArgs args_of(const Event& event) {
  const Action& action = event.action;
  TraceArgs args;
  args.rank = event.rank;
  args.lane = event.lane;
  args.op = action.op;
  args.step = event.step;
  args.stage = if_valid(action.stage);
  args.micro_batch = if_valid(action.micro_batch);
  args.version = if_valid(action.version);
  args.group = if_valid(action.group);
  args.slot = if_valid(action.slot);
  if (is_transfer(action.op)) {
    args.payload = action.tag.payload;
    args.from = if_valid(action.tag.from);
    args.to = if_valid(action.tag.to);
    args.tag_micro_batch = if_valid(action.tag.micro_batch);
    if (action.tag.index != 0) args.tag_index = action.tag.index;
  }
  return args;
}

Event event_of(const TraceEvent& trace) {
  const TraceArgs& args = trace.args;
  Event event;
  event.rank = args.rank;
  event.lane = args.lane;
  event.step = args.step;
  event.begin = Seconds{trace.begin_us / 1e6};
  event.end = Seconds{(trace.begin_us + trace.duration_us) / 1e6};
  Action& action = event.action;
  action.op = args.op;
  action.stage = args.stage.value_or(StageId{});
  action.micro_batch = args.micro_batch.value_or(MicroBatch{});
  action.version = args.version.value_or(Version{});
  action.group = args.group.value_or(Group{});
  action.slot = args.slot.value_or(Slot{});
  action.tag = Tag{args.payload.value_or(Payload::activation), args.from.value_or(StageId{}),
                   args.to.value_or(StageId{}), args.tag_micro_batch.value_or(MicroBatch{}),
                   args.tag_index.value_or(0)};
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
    for (const auto& [lane, name] : EnumNames<Event::Lane>::values) {
      events.push_back(metadata("thread_name", rank, thread_of(lane), Json{{"name", name}}));
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
