#include "engine/records/report/report.h"

#include "base/statistics.h"
#include "engine/records/report/step_windows.h"
#include "schedules/generators/registry.h"
#include "schedules/lowering/lowering.h"
#include "schedules/program/consecutive.h"
#include "schedules/simulator/simulator.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

namespace stagecraft {
namespace {

/// The stage an event's time counts for: its own, or of a transfer the one at this end.
StageId stage_of(const Event& event) {
  const Action& action = event.action;
  if (!is_transfer(action.op)) return action.stage;
  const bool sends = action.op == Op::start_send || action.op == Op::wait_send;
  return sends ? action.tag.from : action.tag.to;
}

/// What a figure is called in the action table.
std::string kind_of(const Event& event) {
  switch (event.action.op) {
    case Op::forward:
      return "forward";
    case Op::recompute:
      return "recompute";
    case Op::backward:
      return "backward";
    case Op::backward_input:
      return "backward input";
    case Op::backward_weight:
      return "backward weight";
    case Op::step:
      return "optimizer";
    case Op::agree_norm:
      return "agree on norm";
    case Op::reduce:
      return "reduce";
    case Op::tie:
      return "sum tied weight";
    case Op::load:
      return "load";
    case Op::start_send:
      return "send " + enum_name(event.action.tag.payload);
    case Op::wait_send:
      return "wait sent " + enum_name(event.action.tag.payload);
    case Op::wait_receive:
      return "wait " + enum_name(event.action.tag.payload);
    case Op::post_receive:
    case Op::release:
    case Op::report_loss:
      return "";
  }
  return "";
}

/// The part of a row that an action's time belongs to, where it is one that is predicted too.
Compared* compared_part(StageRow& row, const Action& action) {
  switch (action.op) {
    case Op::forward:
    case Op::recompute:
      return &row.forward;
    case Op::backward:
    case Op::backward_input:
    case Op::backward_weight:
      return &row.backward;
    case Op::step:
      return &row.optimizer;
    case Op::start_send:
    case Op::wait_send:
      return &row.send;
    case Op::wait_receive:
      if (action.tag.payload == Payload::activation) return &row.wait_activation;
      return action.tag.payload == Payload::gradient ? &row.wait_gradient : nullptr;
    default:
      return nullptr;
  }
}

std::optional<Seconds>& measured_part(StageRow& row, const Action& action) {
  if (Compared* part = compared_part(row, action)) return part->measured;
  switch (action.op) {
    case Op::agree_norm:
    case Op::reduce:
    case Op::tie:
      return row.collective;
    case Op::post_receive:
      return row.receive;
    case Op::wait_receive:
      return row.wait_loss;
    default:
      return row.other;
  }
}

/// All that add_up_events() adds up.
std::array<std::optional<Seconds>*, 10> measured_parts(StageRow& row) {
  return {&row.forward.measured,
          &row.backward.measured,
          &row.optimizer.measured,
          &row.send.measured,
          &row.receive,
          &row.wait_activation.measured,
          &row.wait_gradient.measured,
          &row.wait_loss,
          &row.collective,
          &row.other};
}

class Reporter {
 public:
  explicit Reporter(const RunFiles& run) : run_(run), plan_(run.plan) {}

  RunReport make() {
    describe_run();
    place_stages();
    add_up_events();
    if (plan_.costs) predict_parts();
    memory();
    return std::move(report_);
  }

 private:
  void describe_run();
  void place_stages();
  void add_up_events();
  void predict_parts();
  void memory();
  /// An event without a stage (a collective, a norm) counts for the rank's first.
  StageRow& row_of(const Event& event) {
    const auto own = rows_.find({event.rank, stage_of(event)});
    return report_
        .stage_rows[own != rows_.end() ? own->second : rows_.lower_bound({event.rank, StageId{}})->second];
  }
  [[nodiscard]] std::optional<Seconds> predicted_action(StageId stage, const std::string& kind) const;

  const RunFiles& run_;
  const Plan& plan_;
  RunReport report_;
  std::map<std::pair<Rank, StageId>, std::size_t> rows_;  // in report_.stage_rows
};

void Reporter::describe_run() {
  report_.model = plan_.model;
  report_.schedule = plan_.schedule.name;
  report_.stages = static_cast<int>(plan_.stages.size());
  report_.micro_batches = plan_.micro_batches;
  report_.steps = run_.summary.steps;
  if (run_.summary.measured_steps > 0) {
    report_.step.measured = run_.summary.step.median;
    report_.step_p99 = run_.summary.step.p99;
    report_.samples_per_second = run_.summary.samples_per_second;
  }
  if (plan_.predicted) report_.step.predicted = plan_.predicted->step;
  report_.computed_positions = run_.summary.computed_positions;
  report_.restored = run_.summary.restored;
  report_.stopped_by_signal = run_.summary.stopped_by_signal;
  report_.core_shares = run_.summary.core_shares;
  report_.ended = run_.ended;
}

void Reporter::place_stages() {
  for (std::size_t s = 0; s < plan_.stages.size(); ++s) {
    for (const Rank rank : plan_.stages[s].ranks) {
      StageRow row;
      row.stage = StageId{s};
      row.rank = rank;
      rows_.emplace(std::pair{rank, row.stage}, report_.stage_rows.size());
      report_.stage_rows.push_back(row);
    }
  }
}

void Reporter::add_up_events() {
  const int world = plan_.placement().world();
  std::set<std::int64_t> steps;
  std::map<Rank, Seconds> accounted;
  std::map<std::pair<StageId, std::string>, std::vector<double>> singles;
  const StepWindows windows(run_.timeline);
  Seconds busy;
  const auto counts = [&](const Event& event) {
    return event.lane == Event::Lane::compute && event.rank.value < world;
  };
  for (const Event& event : run_.timeline.events) {
    if (counts(event)) accounted[event.rank] = Seconds{};
  }
  for (StageRow& row : report_.stage_rows) {
    if (!accounted.contains(row.rank)) continue;
    for (std::optional<Seconds>* part : measured_parts(row)) *part = Seconds{};
  }
  const bool whole = accounted.size() == static_cast<std::size_t>(world);
  for (const Event& event : run_.timeline.events) {
    if (!counts(event)) continue;
    const Seconds time = windows.inside(event);
    steps.insert(event.step);
    StageRow& row = row_of(event);
    *measured_part(row, event.action) += time;
    accounted[event.rank] += time;
    if (works(event)) busy += time;
    if (const std::string kind = kind_of(event); !kind.empty())
      singles[{row.stage, kind}].push_back(time.value);
  }
  report_.timeline_steps = static_cast<int>(steps.size());
  if (steps.empty()) return;
  const Seconds window = windows.length();
  const double each = 1.0 / static_cast<double>(steps.size());
  if (window.value > 0 && whole) report_.bubble = 1 - busy / window / static_cast<double>(world);
  for (StageRow& row : report_.stage_rows) {
    for (std::optional<Seconds>* part : measured_parts(row)) {
      if (*part) *part = **part * each;
    }
    // A rank with several stages is idle once: it counts for the first of them.
    if (accounted.contains(row.rank)) row.idle.measured = (window - accounted[row.rank]) * each;
    accounted.erase(row.rank);
  }
  for (auto& [key, times] : singles) {
    ActionRow row{key.first,
                  key.second,
                  static_cast<int>(times.size()),
                  Seconds{quantile(times, 0.5)},
                  Seconds{quantile(times, 0.99)},
                  predicted_action(key.first, key.second)};
    report_.actions.push_back(std::move(row));
  }
}

std::optional<Seconds> Reporter::predicted_action(StageId stage, const std::string& kind) const {
  if (!plan_.costs) return std::nullopt;
  const StageCosts& costs = plan_.costs->stages[stage.index()];
  const double speed = plan_.costs->speed_of(plan_.stages[stage.index()].ranks.front());
  if (kind == "forward" || kind == "recompute") return costs.forward / speed;
  if (kind == "backward") return (costs.backward_input + costs.backward_weight) / speed;
  if (kind == "backward input") return costs.backward_input / speed;
  if (kind == "backward weight") return costs.backward_weight / speed;
  if (kind == "optimizer") return costs.step / speed;
  return std::nullopt;
}

void Reporter::predict_parts() {
  const std::vector<int> groups =
      segment_groups(find_schedule(plan_.schedule.name), report_.stages, plan_.micro_batches);
  LoweredProgram program = lower(plan_program(plan_, groups));
  // Synchronous steps are looked at as many as were measured in a row, since they may overlap.
  constexpr int kMost = 8;
  const int in_a_row = std::clamp(report_.timeline_steps, 1, kMost);
  if (groups.size() == 1 && in_a_row > 1 && can_be_followed(program)) program = repeated(program, in_a_row);
  Timeline timeline;
  const Simulation simulation = simulate(program, *plan_.costs, &timeline);
  const double each = 1.0 / static_cast<double>(program.groups());
  report_.bubble_predicted = simulation.bubble;
  report_.bubble_bound = Simulator(program).run_free_links(*plan_.costs).bubble;
  std::set<Rank> seen;
  for (StageRow& row : report_.stage_rows) {
    for (Compared* part :
         {&row.forward, &row.backward, &row.optimizer, &row.send, &row.wait_activation, &row.wait_gradient}) {
      part->predicted = Seconds{};
    }
    if (seen.insert(row.rank).second) row.idle.predicted = simulation.ranks[row.rank.index()].idle_end * each;
  }
  for (const Event& event : timeline.events) {
    if (event.lane != Event::Lane::compute) continue;
    if (Compared* part = compared_part(row_of(event), event.action)) {
      *part->predicted += (event.end - event.begin) * each;
    }
  }
}

void Reporter::memory() {
  const std::vector<Bytes>& measured = run_.summary.peak;
  const std::vector<Bytes>& proved = run_.summary.proved_peak;
  for (std::size_t r = 0; r < std::max(measured.size(), proved.size()); ++r) {
    MemoryRow row{Rank{r}, std::nullopt, std::nullopt};
    if (r < measured.size() && measured[r] > Bytes{}) row.measured = measured[r];  // none: not known
    if (r < proved.size()) row.proved = proved[r];
    if (r < run_.summary.cards.size()) row.card = run_.summary.cards[r];
    report_.memory.push_back(row);
  }
}

}  // namespace

std::optional<double> Compared::error() const {
  if (!measured || !predicted || predicted->value <= 0) return std::nullopt;
  return *measured / *predicted - 1;
}

RunReport make_report(const RunFiles& run) { return Reporter(run).make(); }

}  // namespace stagecraft
