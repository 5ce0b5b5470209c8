#include "engine/session/step_under_way.h"

#include "base/json.h"

#include <cstdint>
#include <utility>

namespace stagecraft {
namespace {

RankSeconds time_of(Rank rank, const std::vector<Event>& events, std::int64_t step) {
  RankSeconds time{.rank = rank.value};
  for (const Event& event : events) {
    if (event.step != step || event.lane != Event::Lane::compute) continue;
    const EventKind kind = event_kind(event);
    Seconds& sum = kind == EventKind::wait         ? time.wait
                   : kind == EventKind::collective ? time.collective
                   : kind == EventKind::other      ? time.other
                                                   : time.compute;
    sum = sum + (event.end - event.begin);
  }
  return time;
}

/// What passes between processes behind a step.
std::string text_of(const StepReport* report, const RankSeconds& time) {
  Json json;
  json["time"] =
      Json::array({time.rank, time.compute.value, time.wait.value, time.collective.value, time.other.value});
  if (report != nullptr) {
    json["report"] = Json::array({report->step, report->loss, report->correct, report->skipped,
                                  report->learning_rate, report->samples, report->tokens});
    if (report->gradient_norm) json["norm"] = *report->gradient_norm;
    if (report->loss_scale) json["loss_scale"] = *report->loss_scale;
    json["terms"] = report->terms;
  }
  // Not as text: a loss may be no number.
  const std::vector<std::uint8_t> bytes = Json::to_msgpack(json);
  return {bytes.begin(), bytes.end()};
}

void add_from_text(const std::string& text, SessionStep& step) {
  const Json json = Json::from_msgpack(text);
  const Json& time = json.at("time");
  step.ranks.push_back({time[0].get<int>(), Seconds{time[1].get<double>()}, Seconds{time[2].get<double>()},
                        Seconds{time[3].get<double>()}, Seconds{time[4].get<double>()}});
  if (!json.contains("report")) return;
  const Json& report = json.at("report");
  report[0].get_to(step.report.step);
  report[1].get_to(step.report.loss);
  report[2].get_to(step.report.correct);
  report[3].get_to(step.report.skipped);
  report[4].get_to(step.report.learning_rate);
  report[5].get_to(step.report.samples);
  report[6].get_to(step.report.tokens);
  if (json.contains("norm")) step.report.gradient_norm = json["norm"].get<double>();
  if (json.contains("loss_scale")) step.report.loss_scale = json["loss_scale"].get<double>();
  json.at("terms").get_to(step.report.terms);
}

}  // namespace

void StepUnderWay::note(std::size_t place, const StepReport* report, Rank rank,
                        const std::vector<Event>& events) {
  texts_[place] = text_of(report, time_of(rank, events, segment_.first_step));
}

SessionStep StepUnderWay::result(const std::function<void()>& meanwhile) const {
  task_->wait(meanwhile);
  SessionStep step;
  step.took = task_->took();
  for (const std::string& text : texts_) add_from_text(text, step);
  if (segment_.kind == SegmentKind::validate) step.ranks.clear();  // their actions are of no step
  return step;
}

}  // namespace stagecraft
