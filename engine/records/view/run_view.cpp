#include "engine/records/view/run_view.h"

#include "base/printable.h"
#include "base/statistics.h"
#include "engine/records/report/report.h"
#include "engine/records/report/share_history.h"
#include "engine/records/view/drawn_timeline.h"
#include "schedules/generators/registry.h"
#include "schedules/interchange/chrome_trace.h"
#include "schedules/lowering/lowering.h"
#include "schedules/simulator/simulator.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <set>

namespace stagecraft {
namespace {

/// Seconds since 1970, as files have them.
double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// JSON has no number for what is not finite.
Json number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }
Json number(const std::optional<double>& value) { return value ? number(*value) : Json(nullptr); }

Json stages_of(const Plan& plan) {
  Json stages = Json::array();
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const StagePlan& stage = plan.stages[s];
    Json ranks = Json::array();
    for (const Rank rank : stage.ranks) ranks.push_back(rank.value);
    Json row{{"first_layer", stage.first_layer},
             {"last_layer", stage.last_layer},
             {"ranks", std::move(ranks)},
             {"recompute", enum_name(stage.recompute)}};
    if (plan.costs && s < plan.costs->stages.size()) {
      const StageCosts& costs = plan.costs->stages[s];
      row["forward_ms"] = costs.forward.value * 1e3;
      row["backward_ms"] = (costs.backward_input + costs.backward_weight).value * 1e3;
      row["parameter_bytes"] = costs.parameters.value;
    }
    stages.push_back(std::move(row));
  }
  return stages;
}

}  // namespace

RunView::RunView(const std::string& run_dir) : paths_{run_dir}, metrics_(paths_.metrics()), marks_(paths_) {}

RunView::Seen RunView::look(const std::string& path) {
  FileFacts facts;
  if (storage().facts(path, /*follow=*/true, facts)) return {};
  return {facts.identity, facts.bytes};
}

bool RunView::follow(std::size_t most_bytes) {
  const auto line = [this](std::string_view text) {
    if (const auto record = read_metrics_line(text)) {
      history_.add(*record);
      tally_.add(*record);
    } else {
      ++broken_lines_;
    }
  };
  const std::int64_t lines = history_.lines();
  TailedFile::Found found = metrics_.read(most_bytes, line);
  if (found == TailedFile::Found::other) {
    history_ = RunHistory();
    tally_ = MetricsTally();
    broken_lines_ = 0;
    found = metrics_.read(most_bytes, line);
  }
  all_read_ = found != TailedFile::Found::part;
  came_ = history_.lines() != lines;
  marks_.follow(most_bytes);
  follow_results();
  return all_read_;
}

void RunView::with_remark(const std::function<void()>& read) {
  try {
    read();
  } catch (const std::exception& error) {
    result_remarks_.emplace_back(error.what());
  }
}

/// What the plan says, priced once.
void RunView::read_plan() {
  plan_ = predicted_ = predicted_shares_ = nullptr;
  predicted_step_ms_ = 0;
  files_ = {};
  if (look(paths_.plan()) == Seen{}) return;
  files_.plan = stagecraft::read_plan(paths_.plan());
  const Plan& plan = files_.plan;
  plan_ = {{"model", plan.model},
           {"dtype", plan.dtype},
           {"schedule", plan.schedule.name},
           {"micro_batches", plan.micro_batches},
           {"micro_batch_size", plan.micro_batch_size},
           {"stages", stages_of(plan)}};
  if (plan.predicted) predicted_step_ms_ = plan.predicted->step.value * 1e3;
  if (!plan.costs) return;
  const std::vector<int> groups = segment_groups(find_schedule(plan.schedule.name),
                                                 static_cast<int>(plan.stages.size()), plan.micro_batches);
  const LoweredProgram program = lower(plan_program(plan, groups));
  Timeline timeline;
  (void)simulate(program, *plan.costs, &timeline);
  predicted_ = drawn_timeline(timeline);
  predicted_shares_ = rank_shares(timeline);
}

/// What was measured, beside it.
void RunView::show_measured() {
  timeline_ = drawn_timeline(files_.timeline);
  shares_ = rank_shares(files_.timeline);
  shares_left_out_.clear();
  over_time_ = shares_over_time(paths_, files_.plan.placement().world(), kMostShares, shares_left_out_);
  if (!files_.ended) tally_.tell(files_.summary);
  told_steps_ = tally_.steps();
  const RunReport report = make_report(files_);
  report_ = json::write(report);
  notes_ = told_steps_ > 0 ? remarks_of(report) : "";
}

void RunView::read_results() {
  timeline_ = shares_ = over_time_ = report_ = nullptr;
  notes_.clear();
  live_seen_.clear();
  if (plan_.is_null()) return;
  if (files_.plan.predicted) files_.summary.proved_peak = files_.plan.predicted->memory;
  files_.ended = look(paths_.summary()) != Seen{};
  if (files_.ended) {
    with_remark([&] { files_.summary = json::read_file<RunSummary>(paths_.summary()); });
    with_remark([&] {
      if (look(paths_.timeline()) == Seen{}) return;
      files_.timeline = timeline_from_chrome_trace(json::parse_file(paths_.timeline()), paths_.timeline());
    });
  }
  show_measured();
}

/// Of a run that goes: ranks write their last steps one after another, and until all have, the old ones stay.
void RunView::follow_live() {
  if (plan_.is_null() || files_.ended) return;
  // Steps that came behind the last records: of a run that was killed nothing else tells.
  if (!came_ && all_read_ && told_steps_ != tally_.steps()) {
    ++version_;
    with_remark([this] { show_measured(); });
  }
  std::vector<Seen> seen;
  for (Rank rank{0}; rank.value < files_.plan.placement().world(); ++rank.value) {
    seen.push_back(look(paths_.live(rank)));
  }
  if (seen == live_seen_) return;
  RunFiles now = files_;
  now.summary.peak.clear();
  take_live_records(now, paths_);
  if (now.summary.peak.empty() && now.left_out.empty()) return;
  live_seen_ = std::move(seen);
  if (now.summary.peak.empty()) {
    files_.left_out = std::move(now.left_out);  // the older records are better than none
  } else {
    files_ = std::move(now);
  }
  ++version_;
  with_remark([this] { show_measured(); });
}

void RunView::follow_results() {
  const std::vector<Seen> seen{look(paths_.plan()), look(paths_.summary()), look(paths_.timeline()),
                               look(paths_.config())};
  if (seen == results_seen_) return follow_live();
  results_seen_ = seen;
  ++version_;
  result_remarks_.clear();
  total_steps_ = 0;
  with_remark([this] { read_plan(); });
  with_remark([this] { read_results(); });
  with_remark([this] {
    if (look(paths_.config()) == Seen{}) return;
    const Json config = json::parse_file(paths_.config());
    if (config.is_object() && config.contains("train_steps") && config["train_steps"].is_number_integer())
      total_steps_ = config["train_steps"].get<std::int64_t>();
  });
  follow_live();
}

Json RunView::progress() {
  const std::vector<double>& recent = history_.recent_ms();
  double sum = 0;
  for (const double ms : recent) sum += ms;
  const double mean = recent.empty() ? 0 : sum / static_cast<double>(recent.size());
  const double modified = metrics_.modified();
  const double quiet = modified > 0 ? std::max(0.0, now() - modified) : 0;
  const RunCondition condition = condition_of(paths_, quiet, mean / 1e3);
  Json progress{{"phase", enum_name(condition.phase)},
                {"words", condition.words},
                {"step", history_.steps()},
                {"steps", total_steps_ > 0 ? Json(total_steps_) : Json(nullptr)},
                {"quiet_s", modified > 0 ? number(quiet) : Json(nullptr)},
                {"all_read", all_read_},
                {"left_s", nullptr}};
  if (!all_read_ && metrics_.bytes() > 0) {
    progress["read"] = static_cast<double>(metrics_.position()) / static_cast<double>(metrics_.bytes());
  }
  const bool goes = condition.phase == RunPhase::running || condition.phase == RunPhase::starting;
  if (goes && total_steps_ > history_.steps() && mean > 0) {
    progress["left_s"] = mean / 1e3 * static_cast<double>(total_steps_ - history_.steps());
  }
  Json step{{"measured_steps", recent.size()},
            {"predicted_ms", predicted_step_ms_ > 0 ? Json(predicted_step_ms_) : Json(nullptr)}};
  const double median = recent.empty() ? 0 : quantile(recent, 0.5);
  if (!recent.empty()) {
    step["median_ms"] = number(median);
    step["low_ms"] = number(quantile(recent, 0.1));
    step["high_ms"] = number(quantile(recent, 0.9));
  }
  progress["step_time"] = std::move(step);
  if (const auto& newest = history_.newest()) {
    progress["loss"] = number(newest->loss);
    progress["terms"] = Json::object();
    for (const auto& [name, term] : newest->terms) progress["terms"][name] = number(term);
    progress["learning_rate"] = number(newest->learning_rate);
    progress["gradient_norm"] = number(newest->gradient_norm);
    // Of steps as long as the median.
    const double scale = median > 0 && newest->ms > 0 ? newest->ms / median : 1;
    progress["samples_per_second"] = number(newest->samples_per_second * scale);
    progress["tokens_per_second"] =
        newest->tokens_per_second ? number(*newest->tokens_per_second * scale) : Json(nullptr);
  }
  return progress;
}

Json RunView::terms() const {
  const bool ranges = history_.width() > 1;
  std::set<std::string> names;
  for (const RunHistory::Point& point : history_.points()) {
    for (const auto& [name, range] : point.terms) names.insert(name);
  }
  for (const RunHistory::Validation& validation : history_.validations()) {
    for (const auto& [name, term] : validation.terms) names.insert(name);
  }
  Json all = Json::object();
  for (const std::string& name : names) {
    Json line = Json::array(), low = Json::array(), high = Json::array(), validation = Json::array();
    for (const RunHistory::Point& point : history_.points()) {
      const auto found = point.terms.find(name);
      const RunHistory::Range its = found == point.terms.end() ? RunHistory::Range{} : found->second;
      line.push_back(number(its.mean()));
      if (ranges) {
        low.push_back(number(its.low));
        high.push_back(number(its.high));
      }
    }
    for (const RunHistory::Validation& one : history_.validations()) {
      const auto found = one.terms.find(name);
      validation.push_back(found == one.terms.end() ? Json(nullptr) : number(found->second));
    }
    all[name] = {{"line", std::move(line)},
                 {"low", std::move(low)},
                 {"high", std::move(high)},
                 {"validation", std::move(validation)}};
  }
  return all;
}

Json RunView::series() const {
  Json step = Json::array(), loss = Json::array(), loss_low = Json::array(), loss_high = Json::array(),
       rate = Json::array(), norm = Json::array(), ms = Json::array(), ms_low = Json::array(),
       ms_high = Json::array();
  Json skipped = Json::array();
  const bool ranges = history_.width() > 1;
  for (const RunHistory::Point& point : history_.points()) {
    step.push_back(point.step);
    loss.push_back(number(point.loss.mean()));
    rate.push_back(number(point.learning_rate));
    norm.push_back(number(point.norm.mean()));
    ms.push_back(number(point.ms.mean()));
    if (ranges) {
      loss_low.push_back(number(point.loss.low));
      loss_high.push_back(number(point.loss.high));
      ms_low.push_back(number(point.ms.low));
      ms_high.push_back(number(point.ms.high));
    }
    if (point.skipped > 0) skipped.push_back(Json::array({point.step, point.skipped}));
  }
  Json validation_step = Json::array(), validation_loss = Json::array(), accuracy = Json::array();
  for (const RunHistory::Validation& validation : history_.validations()) {
    validation_step.push_back(validation.step);
    validation_loss.push_back(number(validation.loss));
    accuracy.push_back(number(validation.accuracy));
  }
  return {{"width", history_.width()},
          {"step", std::move(step)},
          {"loss", std::move(loss)},
          {"loss_low", std::move(loss_low)},
          {"loss_high", std::move(loss_high)},
          {"terms", terms()},
          {"learning_rate", std::move(rate)},
          {"gradient_norm", std::move(norm)},
          {"ms", std::move(ms)},
          {"ms_low", std::move(ms_low)},
          {"ms_high", std::move(ms_high)},
          {"skipped", std::move(skipped)},
          {"validation",
           {{"step", std::move(validation_step)},
            {"loss", std::move(validation_loss)},
            {"accuracy", std::move(accuracy)}}}};
}

Json RunView::document(std::int64_t have) {
  remarks_ = result_remarks_;
  if (broken_lines_ > 0) {
    remark(fmt::format("{}: {} broken lines are left out", paths_.metrics(), broken_lines_));
  }
  for (const std::string& text : files_.left_out) remark(text);
  for (const std::string& text : shares_left_out_) remark(text);
  Json checkpoints = Json::array();
  for (const RunMarks::Checkpoint& checkpoint : marks_.checkpoints()) {
    checkpoints.push_back(Json::array({checkpoint.step, checkpoint.kept}));
  }
  Json document{{"name", paths_.root},
                {"version", version_},
                {"progress", progress()},
                {"series", series()},
                {"marks",
                 {{"checkpoints", std::move(checkpoints)},
                  {"restarts", marks_.restarts()},
                  {"skipped_steps", history_.skipped()}}},
                {"remarks", remarks_}};
  if (have == version_) return document;
  document["plan"] = plan_;
  document["report"] = report_;
  document["notes"] = notes_;
  document["predicted"] = {{"timeline", predicted_}, {"shares", predicted_shares_}};
  document["measured"] = {{"timeline", timeline_}, {"shares", shares_}, {"over_time", over_time_}};
  return document;
}

namespace {

/// Names come from files that others wrote: characters that turn text around or obey are written out.
void make_printable(Json& json) {
  if (json.is_string()) {
    json = printable(json.get_ref<const std::string&>());
  } else if (json.is_structured() && !(json.is_array() && (json.empty() || json.front().is_number()))) {
    for (Json& child : json) make_printable(child);
  }
}

}  // namespace

Json document_of(std::vector<RunView>& runs, bool live, const std::vector<std::int64_t>& have) {
  Json documents = Json::array();
  for (std::size_t i = 0; i < runs.size(); ++i) {
    Json run = runs[i].document(i < have.size() ? have[i] : -1);
    make_printable(run);
    documents.push_back(std::move(run));
  }
  return {{"format", "stagecraft view 1"},
          {"live", live},
          {"made", std::floor(now())},
          {"styles", style_table()},
          {"runs", std::move(documents)}};
}

}  // namespace stagecraft
