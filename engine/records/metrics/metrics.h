#pragma once

// metrics.jsonl: one JSON object a line, written as soon as a step or a validation is over.

#include "base/describe.h"
#include "base/storage.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace stagecraft {

/// One line. Times are the machine's; all else is a fact of the run, the same to the bit wherever it ran.
struct MetricsRecord {
  std::int64_t step = 0;    ///< optimizer steps made when this was so
  bool validation = false;  ///< of the validation data after that step, instead of the step's own
  double loss = 0;          ///< NaN is null in the file
  bool no_targets = false;  ///< validation in which no target counts (all are left out): it has no loss
  std::map<std::string, double> terms;  ///< the loss's, by name; NaN as in `loss`. Empty: it has none
  std::optional<double> accuracy;       ///< validation of classes or tokens
  std::optional<double> gradient_norm;  ///< before clipping
  std::optional<double> loss_scale;     ///< float16
  bool skipped = false;                 ///< the gradient was not finite, the weights stayed
  std::optional<double> learning_rate;
  std::optional<double> unix_time;  ///< seconds, when it was over; absent in runs of earlier versions
  double ms = 0;                    ///< of the step, or of the whole validation
  double samples_per_second = 0;
  std::optional<double> tokens_per_second;
};
template <class V>
void describe(V& v, MetricsRecord& r) {
  v.required("step", r.step, "optimizer steps made", json::at_least(0));
  v.optional("validation", r.validation, "on the validation data");
  // JSON has no number for a loss that is not finite: null, read back as NaN.
  auto loss = std::isfinite(r.loss) ? std::optional(r.loss) : std::nullopt;
  v.required(
      "loss", loss,
      "of the mini-batch, or the mean over the validation data; null: not finite, or no target counts");
  r.loss = loss.value_or(std::numeric_limits<double>::quiet_NaN());
  auto none = r.no_targets ? std::optional(true) : std::nullopt;  // most lines have none of it
  v.optional("no_targets", none, "validation: no target counts, so there is no loss");
  r.no_targets = none.value_or(false);
  std::optional<std::map<std::string, std::optional<double>>> terms;  // losses without any have no such key
  for (const auto& [name, term] : r.terms) {
    if (!terms) terms.emplace();
    (*terms)[name] = std::isfinite(term) ? std::optional(term) : std::nullopt;
  }
  v.optional("terms", terms, "numbers that the loss reports beside itself, by name; null: not finite");
  r.terms.clear();
  if (terms) {
    for (const auto& [name, term] : *terms)
      r.terms[name] = term.value_or(std::numeric_limits<double>::quiet_NaN());
  }
  v.optional("accuracy", r.accuracy, "share of right predictions");
  v.optional("gradient_norm", r.gradient_norm, "before clipping");
  v.optional("loss_scale", r.loss_scale, "float16: what the loss was multiplied by");
  v.optional("skipped", r.skipped, "the gradient was not finite, the weights stayed");
  v.optional("learning_rate", r.learning_rate, "of the step");
  v.optional("unix_time", r.unix_time, "seconds since 1970 (UTC) when it was over");
  v.required("ms", r.ms, "wall time");
  v.required("samples_per_second", r.samples_per_second, "throughput");
  v.optional("tokens_per_second", r.tokens_per_second, "throughput, text");
}

/// Appends lines. A killed run leaves at most one broken line, the last.
class MetricsWriter {
 public:
  /// Throws InputError when the file cannot be opened: unwritable, or a link in its place.
  explicit MetricsWriter(std::string path);
  /// Throws InputError when the line cannot be written, and leaves none of it in the file: it is owed, and written
  /// before the next one. So it is where memory has run out (std::bad_alloc).
  void append(const MetricsRecord& record);
  /// All lines will be there after a power cut, those too that could not be written before: a run that ends for
  /// want of one may still save its state. Before each checkpoint, so that history reaches as far as state.
  void sync();
  [[nodiscard]] std::size_t owed_bytes() const { return owed_.size(); }

 private:
  void make_line();
  void write_owed();

  std::string path_;
  StoredFilePtr file_;
  std::uint64_t bytes_ = 0;
  std::string owed_;                     ///< what could not be written yet
  std::optional<MetricsRecord> newest_;  ///< behind it, not yet a line
};

/// All lines; none where the file is missing. A broken last line is left out. Any other throws InputError with
/// its number; with `left_out`, whose numbers they become, only where no line is whole. Throws InputError for
/// what cannot be read.
[[nodiscard]] std::vector<MetricsRecord> read_metrics(const std::string& path,
                                                      std::vector<int>* left_out = nullptr);

/// One line without its newline; nothing for one that is broken. Keys of a newer version of Stagecraft are passed over:
/// this is for who watches runs, whoever makes them.
[[nodiscard]] std::optional<MetricsRecord> read_metrics_line(std::string_view line);

/// Keeps the lines of the first `step` steps: what a resumed run will write again goes, and with it lines
/// that a power cut left broken. `validation_owed`: so does the validation after `step`. Looks at no line
/// before those that go, and puts a copy in the file's place: an earlier start that lives on has the old one open, and
/// what it still writes there is lost (base/fence.h). Returns the step of the last line that stays; -1 for none. Throws
/// InputError, with all lines still there.
std::int64_t cut_metrics_back(const std::string& path, std::int64_t step, bool validation_owed);

}  // namespace stagecraft
