#pragma once

// summary.json: what a run's last session came to, in figures. Needs no LibTorch: `report` reads it anywhere.

#include "base/ids.h"
#include "engine/records/metrics/metrics.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace stagecraft {

/// Of the steps of one session; without its first, which still allocates, where there are others. Zeros for
/// no steps.
struct StepTimes {
  Seconds median, p99, interquartile_range;
};
template <class V>
void describe(V& v, StepTimes& t) {
  v.required("median_ms", t.median, "half of the steps are shorter", json::at_least(0));
  v.required("p99_ms", t.p99, "99 of 100 are shorter", json::at_least(0));
  v.required("interquartile_range_ms", t.interquartile_range, "between the quarters", json::at_least(0));
}

/// Of a rank's GPU, beside the peak of its tensors.
struct CardUse {
  Bytes reserved, used, total;
  Bytes needed;
};
template <class V>
void describe(V& v, CardUse& c) {
  v.required("reserved_bytes", c.reserved, "most that LibTorch's allocator had of it");
  v.required("used_bytes", c.used, "of the card, by whatever ran there, at the end");
  v.required("total_bytes", c.total, "of the card");
  v.required("needed_bytes", c.needed, "by the rank as proved, with what it takes beside tensors");
}

struct RunSummary {
  std::int64_t steps = 0;          ///< made by the run, resumed ones included
  int stopped_by_signal = 0;       ///< 0: it ran to its end
  std::int64_t skipped_steps = 0;  ///< of this session; asynchronous: the most that any stage skipped
  /// The session that made the last step did not come to write this: it is what metrics.jsonl tells, and
  /// neither memory nor a timeline are known.
  bool restored = false;
  std::int64_t measured_steps = 0;
  StepTimes step;
  double samples_per_second = 0;  ///< at the median step
  std::optional<double> tokens_per_second;
  /// Of the positions of whole samples; absent: no sample was cut. Predictions are of whole ones.
  std::optional<double> computed_positions;
  /// The model's: matrix products of forward and backward, without recomputation.
  double flops_per_second = 0;
  std::optional<double> flops_utilization;  ///< of what the ranks' GPUs can do, where that is known
  std::optional<Seconds> predicted_step;
  std::optional<MetricsRecord> last_step, last_validation;
  std::vector<Bytes> peak;         ///< measured, per rank; empty where it is not known
  std::vector<Bytes> proved_peak;  ///< per rank; empty where the plan has no costs
  std::vector<CardUse> cards;      ///< per rank; empty on CPUs
  /// What of a core each rank's thread got while it computed; 0: not known. Empty on GPUs.
  std::vector<double> core_shares;
};
template <class V>
void describe(V& v, RunSummary& s) {
  v.required("steps", s.steps, "optimizer steps made", json::at_least(0));
  v.required("stopped_by_signal", s.stopped_by_signal, "its number; 0: the run came to its end");
  v.optional("skipped_steps", s.skipped_steps, "of the last session: the gradient was not finite",
             json::at_least(0));
  auto restored = s.restored ? std::optional(true) : std::nullopt;  // most are not
  v.optional("restored", restored,
             "made by a later --resume from metrics.jsonl, since the run's own end was lost");
  s.restored = restored.value_or(false);
  v.required("measured_steps", s.measured_steps, "behind the step times", json::at_least(0));
  v.required("step_time", s.step, "of the last session's steps");
  v.required("samples_per_second", s.samples_per_second, "at the median step");
  v.optional("tokens_per_second", s.tokens_per_second, "at the median step, text");
  v.optional("computed_positions", s.computed_positions,
             "share of whole samples' positions, with data.buckets");
  v.optional("flops_per_second", s.flops_per_second, "floating-point operations of the model's products");
  v.optional("flops_utilization", s.flops_utilization, "of the peak of the ranks' GPUs");
  v.optional("predicted_step_ms", s.predicted_step, "by the plan");
  v.optional("last_step", s.last_step, "as in metrics.jsonl");
  v.optional("last_validation", s.last_validation, "as in metrics.jsonl");
  v.required("peak_bytes", s.peak, "measured peak of requested tensor bytes, per rank");
  v.required("proved_peak_bytes", s.proved_peak, "what the checker proved to be enough, per rank");
  auto cards = s.cards.empty() ? std::nullopt : std::optional(s.cards);
  v.optional("cards", cards, "memory of the ranks' GPUs");
  s.cards = cards.value_or(std::vector<CardUse>());
  auto shares = s.core_shares.empty() ? std::nullopt : std::optional(s.core_shares);
  v.optional("core_shares", shares, "of a core, that each rank's thread got while it computed; 0: not known");
  s.core_shares = shares.value_or(std::vector<double>());
}

}  // namespace stagecraft
