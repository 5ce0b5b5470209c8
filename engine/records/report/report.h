#pragma once

// What a run says about its plan: where every stage's time went, and how far each figure is from
// what was predicted. Reads a run directory; needs no LibTorch, no MPI and no model.
//
// Measured figures are of the steps in timeline.json (the last log.timeline_steps of the run), a step, except
// the step time, which is the median over all steps of the run's last session (summary.json).

#include "engine/records/metrics/run_paths.h"
#include "engine/records/metrics/run_summary.h"
#include "partitioner/plan/plan.h"
#include "schedules/program/timeline.h"

#include <optional>
#include <string>
#include <vector>

namespace stagecraft {

/// A measured time beside its prediction.
struct Compared {
  std::optional<Seconds> measured;   ///< absent where the run did not measure it
  std::optional<Seconds> predicted;  ///< absent where the plan has no costs
  /// measured / predicted - 1; absent without one of them or with a prediction of 0.
  [[nodiscard]] std::optional<double> error() const;
};
template <class V>
void describe(V& v, Compared& c) {
  v.required("measured_ms", c.measured, "of the run; null: it was not measured");
  v.optional("predicted_ms", c.predicted, "by the plan's costs and the simulator");
}

/// Where a stage's time went on one of its ranks, a step. The parts add up to the step's share of the window.
/// Measured times are absent where the timeline has nothing of the rank.
struct StageRow {
  StageId stage;
  Rank rank;
  Compared forward, backward, optimizer;
  Compared send;                      ///< handing tensors over, and waiting until they may be overwritten
  std::optional<Seconds> receive;     ///< posting receives
  Compared wait_activation;           ///< for the previous stage
  Compared wait_gradient;             ///< for the next stage
  std::optional<Seconds> wait_loss;   ///< for the loss to arrive at stage 0
  std::optional<Seconds> collective;  ///< reductions, agreeing on the norm; the others' lateness included
  std::optional<Seconds> other;       ///< loading, reporting
  Compared idle;                      ///< nothing at all: after the last action of a step, between steps
};
template <class V>
void describe(V& v, StageRow& s) {
  v.required("stage", s.stage, "stage");
  v.required("rank", s.rank, "its rank");
  v.required("forward", s.forward, "a step");
  v.required("backward", s.backward, "a step");
  v.required("optimizer", s.optimizer, "a step");
  v.required("send", s.send, "handing tensors over");
  v.required("receive_ms", s.receive, "posting receives");
  v.required("wait_activation", s.wait_activation, "for the previous stage");
  v.required("wait_gradient", s.wait_gradient, "for the next stage");
  v.required("wait_loss_ms", s.wait_loss, "for the loss");
  v.required("collective_ms", s.collective, "reductions over replicas, agreeing on the norm");
  v.required("other_ms", s.other, "loading, reporting");
  v.required("idle", s.idle, "nothing at all");
}

/// One kind of action of one stage, all its replicas, by its single times.
struct ActionRow {
  StageId stage;
  std::string kind;  ///< "forward", "wait activation"
  int count = 0;
  Seconds p50, p99;
  std::optional<Seconds> predicted;
};
template <class V>
void describe(V& v, ActionRow& a) {
  v.required("stage", a.stage, "stage");
  v.required("kind", a.kind, "of action");
  v.required("count", a.count, "in the timeline");
  v.required("p50_ms", a.p50, "median");
  v.required("p99_ms", a.p99, "99 of 100 are shorter");
  v.optional("predicted_ms", a.predicted, "by the plan's costs");
}

struct MemoryRow {
  Rank rank;
  std::optional<Bytes> measured;
  std::optional<Bytes> proved;
  std::optional<CardUse> card{};
};
template <class V>
void describe(V& v, MemoryRow& m) {
  v.required("rank", m.rank, "rank");
  v.required("measured_bytes", m.measured, "peak of requested tensor bytes; null: not measured");
  v.optional("proved_bytes", m.proved, "what the checker proved to be enough");
  v.optional("card", m.card, "memory of the rank's GPU");
}

struct RunReport {
  std::string model;
  std::string schedule;
  int stages = 0;
  int micro_batches = 0;
  std::int64_t steps = 0;  ///< of the run
  int timeline_steps = 0;  ///< behind the stage table
  Compared step;           ///< median
  std::optional<Seconds> step_p99;
  std::optional<double>
      bubble;  ///< 1 - mean busy share of the ranks; absent without all of them in a timeline
  std::optional<double> bubble_predicted;
  std::optional<double> bubble_bound;  ///< with transfers that take no time: the best this order allows
  std::optional<double> samples_per_second;
  std::optional<double> computed_positions;  ///< as in RunSummary
  bool restored = false;                     ///< likewise
  bool ended = true;                         ///< as in RunFiles
  int stopped_by_signal = 0;                 ///< as in RunSummary
  std::vector<double> core_shares;           ///< as in RunSummary
  std::vector<StageRow> stage_rows;
  std::vector<ActionRow> actions;
  std::vector<MemoryRow> memory;
};
template <class V>
void describe(V& v, RunReport& r) {
  v.required("model", r.model, "name");
  v.required("schedule", r.schedule, "name");
  v.required("stages", r.stages, "number");
  v.required("micro_batches", r.micro_batches, "a step");
  v.required("steps", r.steps, "of the run");
  v.required("timeline_steps", r.timeline_steps, "behind the stage table");
  v.required("step", r.step, "median of the run's steps");
  v.required("step_p99_ms", r.step_p99, "99 of 100 are shorter; null: no step was measured");
  v.required("bubble", r.bubble, "idle share of the mean rank; null: no timeline");
  v.optional("bubble_predicted", r.bubble_predicted, "by the simulator");
  v.optional("bubble_bound", r.bubble_bound, "with free transfers");
  v.required("samples_per_second", r.samples_per_second, "at the median step; null: no step was measured");
  v.optional("computed_positions", r.computed_positions, "share of whole samples', which predictions are of");
  auto restored = r.restored ? std::optional(true) : std::nullopt;
  v.optional("restored", restored, "the run's end was lost: figures are those that metrics.jsonl has");
  r.restored = restored.value_or(false);
  auto ended = r.ended ? std::nullopt : std::optional(false);
  v.optional("ended", ended, "false: the run goes on or was killed, and this is what it wrote so far");
  r.ended = ended.value_or(true);
  auto stopped = r.stopped_by_signal != 0 ? std::optional(r.stopped_by_signal) : std::nullopt;
  v.optional("stopped_by_signal", stopped, "its number; the run was not at its end");
  r.stopped_by_signal = stopped.value_or(0);
  auto shares = r.core_shares.empty() ? std::nullopt : std::optional(r.core_shares);
  v.optional("core_shares", shares, "of a core, that each rank's thread got while it computed; 0: not known");
  r.core_shares = shares.value_or(std::vector<double>());
  v.required("stage_times", r.stage_rows, "a step");
  v.required("actions", r.actions, "single times");
  v.required("memory", r.memory, "a rank");
}

/// What a run directory holds of this. Of a run that goes on or was killed: what it has written so far. Throws
/// InputError naming the file that is missing or broken.
struct RunFiles {
  bool ended = true;  ///< by itself or by a signal: it wrote summary.json
  Plan plan;
  Timeline timeline;
  std::vector<MetricsRecord> metrics;
  RunSummary summary;
  std::vector<int> broken_lines;      ///< of metrics.jsonl, left out of `metrics`
  std::vector<std::string> left_out;  ///< other records that are damaged, as notes
};
[[nodiscard]] RunFiles read_run(const std::string& run_dir);
/// Timeline and memory of a run that has not ended, where its ranks have written their last steps (rank_record.h).
/// `run` has its plan.
void take_live_records(RunFiles& run, const RunPaths& paths);

[[nodiscard]] RunReport make_report(const RunFiles& run);

/// Aligned tables, for a terminal.
[[nodiscard]] std::string report_text(const RunReport& report);

/// Steps drawn: more would be too narrow to read.
constexpr int kDrawnSteps = 2;
/// Those at a timeline's end, from 0.
[[nodiscard]] Timeline last_steps(const Timeline& timeline);
/// The picture of the last steps alone. Throws InputError where the run kept no timeline.
[[nodiscard]] std::string report_svg(const RunReport& report, const RunFiles& run);

/// `error` as people read it: "+3.2 %".
[[nodiscard]] std::string signed_percent(double fraction);
/// "5.2"; "-" for what was not measured.
[[nodiscard]] std::string ms_or_none(const std::optional<Seconds>& time);
[[nodiscard]] std::string percent_or_none(const std::optional<double>& share);
[[nodiscard]] std::string samples_per_second_words(const RunReport& report);
/// What core shares (RunSummary) tell people: who got less than a core, and what to do; "" where all got one.
[[nodiscard]] std::string shared_cores(const std::vector<double>& shares);
/// Lines about samples that were cut, and about what was not measured; empty where there is nothing to say.
[[nodiscard]] std::string remarks_of(const RunReport& report);

}  // namespace stagecraft
