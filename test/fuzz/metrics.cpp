// metrics.jsonl: what is read is written and read back the same, a resume can cut it back, and a report can
// draw it. An input is changed line by line: as bytes, or one line's values.

#include "engine/records/metrics/metrics.h"

#include "base/error.h"
#include "test/fuzz/json_changes.h"
#include "test/fuzz/judge_run.h"
#include "test/fuzz/scratch_folder.h"
#include "test/fuzz/target.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>

namespace stagecraft::fuzz {
namespace {

bool same(const MetricsRecord& a, const MetricsRecord& b) {
  const bool both_diverged = std::isnan(a.loss) && std::isnan(b.loss);
  return (both_diverged || a.loss == b.loss) && a.step == b.step && a.validation == b.validation &&
         a.accuracy == b.accuracy && a.gradient_norm == b.gradient_norm && a.loss_scale == b.loss_scale &&
         a.skipped == b.skipped && a.learning_rate == b.learning_rate && a.ms == b.ms &&
         a.samples_per_second == b.samples_per_second && a.tokens_per_second == b.tokens_per_second;
}

bool same(const std::vector<MetricsRecord>& a, const std::vector<MetricsRecord>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const MetricsRecord& one, const MetricsRecord& other) { return same(one, other); });
}

}  // namespace
}  // namespace stagecraft::fuzz

FUZZ_MUTATOR(metrics) {
  using namespace stagecraft;
  const std::string text(data, data + size);
  if (size > 0 && seed % 2 == 1) {
    const std::size_t at = seed / 2 % size;
    const std::size_t begin = at == 0 ? 0 : text.rfind('\n', at - 1) + 1;  // npos + 1 is 0
    const std::size_t end = std::min(text.find('\n', at), size);
    const std::string line = fuzz::change_json(text.substr(begin, end - begin), seed / 2);
    if (!line.empty()) return fuzz::put(text.substr(0, begin) + line + text.substr(end), data, max_size);
  }
  return LLVMFuzzerMutate(data, size, max_size);
}

FUZZ_TARGET(metrics) {
  using namespace stagecraft;
  static const fuzz::ScratchFolder folder;
  static RunFiles run = fuzz::empty_run();
  const std::string read = folder.write("read.jsonl", std::string(data, data + size));
  try {
    run.metrics = read_metrics(read);
  } catch (const InputError&) {
    return 0;
  }
  fuzz::accepted();
  const std::string written = folder.write("written.jsonl", "");
  MetricsWriter writer(written);
  for (const MetricsRecord& record : run.metrics) writer.append(record);
  fuzz::require(fuzz::same(read_metrics(written), run.metrics), "metrics read back");
  const std::int64_t middle = run.metrics.empty() ? 0 : run.metrics[run.metrics.size() / 2].step;
  cut_metrics_back(read, middle, /*validation_owed=*/true);
  // A run's steps never go back, so nothing is looked at before the last line that stays.
  const auto lines = static_cast<std::size_t>(std::count(data, data + size, '\n'));
  const bool of_a_run =
      lines == run.metrics.size() &&
      std::is_sorted(run.metrics.begin(), run.metrics.end(),
                     [](const MetricsRecord& a, const MetricsRecord& b) { return a.step < b.step; });
  for (const MetricsRecord& record : of_a_run ? read_metrics(read) : std::vector<MetricsRecord>{}) {
    fuzz::require(record.step <= middle, "what a resume will write again is gone");
  }
  if (fuzz::choice_of(data, size) % fuzz::kReportOneOf == 0) fuzz::judge(run);
  return 0;
}
