#include "engine/records/report/rank_record.h"

#include "base/error.h"
#include "base/files.h"
#include "engine/records/report/clock_line.h"
#include "schedules/interchange/chrome_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <set>
#include <utility>

namespace stagecraft {
namespace {

// No machine is up for longer, or has more memory. What says otherwise was not written by a rank.
constexpr Seconds kLongestUptime{1e9};
constexpr Bytes kMostBytes{std::int64_t{1} << 50U};
constexpr double kMostOfACore = 2;  // two clocks are read one after the other

/// From a rank's event times to the reporter's.
std::function<Seconds(Seconds)> clock_between(RankRecord& theirs, const RankRecord& mine) {
  if (theirs.boot == mine.boot) {
    return [shift = theirs.origin - mine.origin](Seconds time) { return time + shift; };
  }
  // While a run goes, one may have been to a meeting more. A file may say anything.
  std::vector<std::vector<Seconds>> ours = mine.meetings;
  std::size_t common = 0;
  const auto agree = [&](std::size_t i) {
    return i < ours.size() && i < theirs.meetings.size() && !ours[i].empty() &&
           ours[i].size() == theirs.meetings[i].size();
  };
  while (agree(common)) ++common;
  theirs.meetings.resize(common);
  ours.resize(common);
  return [origin = theirs.origin, here = mine.origin, line = ClockLine(theirs.meetings, ours)](Seconds time) {
    return line(origin + time) - here;
  };
}

void keep_common_steps(std::vector<RankRecord>& records) {
  std::set<std::int64_t> common;
  for (std::size_t r = 0; r < records.size(); ++r) {
    std::set<std::int64_t> its;
    for (const Event& event : records[r].events) {
      if (r == 0 || common.contains(event.step)) its.insert(event.step);
    }
    common = std::move(its);
  }
  for (RankRecord& record : records) {
    std::erase_if(record.events, [&](const Event& event) { return !common.contains(event.step); });
  }
}

}  // namespace

Json record_json(const RankRecord& record) {
  Json json;
  json["rank"] = record.rank.value;
  json["name"] = record.name;
  json["boot"] = record.boot;
  json["origin_s"] = record.origin.value;
  json["meetings_s"] = Json::array();
  for (const std::vector<Seconds>& meeting : record.meetings) {
    Json& times = json["meetings_s"].emplace_back(Json::array());
    for (const Seconds time : meeting) times.push_back(time.value);
  }
  json["peak_bytes"] = record.peak.value;
  if (record.core_share) json["core_share"] = *record.core_share;
  Timeline timeline;
  timeline.events = record.events;
  json["trace"] = to_chrome_trace(timeline);
  return json;
}

RankRecord record_from(const Json& json, const std::string& file) try {
  RankRecord record;
  record.rank = Rank{json.at("rank").get<int>()};
  record.name = json.at("name").get<std::string>();
  record.boot = json.at("boot").get<std::string>();
  record.origin = Seconds{json.at("origin_s").get<double>()};
  for (const Json& meeting : json.at("meetings_s")) {
    std::vector<Seconds>& times = record.meetings.emplace_back();
    for (const Json& time : meeting) times.emplace_back(time.get<double>());
  }
  record.peak = Bytes{json.at("peak_bytes").get<std::int64_t>()};
  if (json.contains("core_share")) record.core_share = json.at("core_share").get<double>();
  record.events = timeline_from_chrome_trace(json.at("trace"), file).events;
  const auto has_sense = [](Seconds time) { return std::abs(time.value) <= kLongestUptime.value; };
  const bool clocks =
      has_sense(record.origin) && std::ranges::all_of(record.meetings, [&](const auto& meeting) {
        return std::ranges::all_of(meeting, has_sense);
      });
  const bool events = std::ranges::all_of(record.events, [&](const Event& event) {
    return event.rank == record.rank && has_sense(event.begin) && has_sense(event.end) &&
           event.begin <= event.end;
  });
  const bool memory = record.peak >= Bytes{} && record.peak <= kMostBytes;
  const bool share = !record.core_share || (*record.core_share >= 0 && *record.core_share <= kMostOfACore);
  if (!clocks || !events || !memory || !share) throw InputError({file, ""}, "has figures that no rank has");
  return record;
} catch (const Json::exception&) {
  throw InputError({file, ""}, "is no record of a rank's last steps");
}

Timeline merged(std::string title, std::vector<RankRecord> records, std::size_t reporter) {
  Timeline timeline;
  timeline.title = std::move(title);
  Seconds first{std::numeric_limits<double>::infinity()};
  const RankRecord mine = records.at(reporter);
  for (RankRecord& record : records) {
    while (timeline.rank_names.size() <= record.rank.index())
      timeline.rank_names.push_back(fmt::format("rank {}", timeline.rank_names.size()));
    timeline.rank_names[record.rank.index()] = record.name;
    const std::function<Seconds(Seconds)> here = clock_between(record, mine);
    for (Event event : record.events) {
      event.begin = here(event.begin);
      event.end = here(event.end);
      first = std::min(first, event.begin);
      timeline.events.push_back(event);
    }
  }
  for (Event& event : timeline.events) {
    event.begin -= first;
    event.end -= first;
  }
  return timeline;
}

LiveRecords read_live_records(const RunPaths& paths, int world) {
  LiveRecords found;
  if (!is_there(paths.live())) return found;
  for (Rank rank{0}; rank.value < world; ++rank.value) {
    const std::string path = paths.live(rank);
    try {
      if (!is_there(path)) throw InputError({path, ""}, "is not there");
      RankRecord record = record_from(json::parse_file(path), path);
      if (record.rank != rank) throw InputError({path, "/rank"}, "is of another rank");
      found.records.push_back(std::move(record));
    } catch (const InputError& error) {
      found.left_out.push_back(
          fmt::format("the last steps of rank {} are left out: {}", rank.value, error.what()));
    }
  }
  keep_common_steps(found.records);
  if (found.records.empty() || found.records.front().events.empty()) found.records.clear();
  return found;
}

}  // namespace stagecraft
