#include "engine/run/show/summary.h"

#include "base/files.h"
#include "base/json.h"
#include "engine/records/metrics/metrics.h"
#include "engine/run/resolve/devices.h"
#include "engine/run/resolve/memory_check.h"
#include "engine/run/show/live_record.h"
#include "engine/transport/cores.h"
#include "models/data/buckets.h"
#include "schedules/interchange/chrome_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

namespace stagecraft {
namespace {

/// What follows from the plan, the model and the steps' times.
RunSummary of_steps(const RunSetup& setup, const StepTimeSample& times) {
  RunSummary summary;
  summary.measured_steps = times.steps();
  summary.step = times.times();
  const double median = summary.step.median.value;
  summary.samples_per_second = median > 0 ? static_cast<double>(setup.config().train_batch_size) / median : 0;
  if (const double tokens = tokens_per_sample(setup.inputs()); tokens > 0) {
    summary.tokens_per_second = summary.samples_per_second * tokens;
  }
  const double computed = computed_positions(*setup.inputs().data);
  if (computed < 1) summary.computed_positions = computed;
  // A multiply-add is two operations; backward has two products for each of forward's. Of samples that are cut
  // a share counts, as if attention did not grow faster than they do.
  summary.flops_per_second =
      6.0 * static_cast<double>(setup.inputs().model.multiply_adds()) * computed * summary.samples_per_second;
  if (const auto peak = peak_flops_of(setup.config(), setup.world())) {
    summary.flops_utilization = summary.flops_per_second / *peak;
  }
  if (setup.plan().predicted) summary.predicted_step = setup.plan().predicted->step;
  summary.proved_peak = setup.programs().memory();
  return summary;
}

/// What metrics.jsonl tells of the steps. Without step times where that has none.
RunSummary restored_summary(const RunSetup& setup, const std::string& metrics, std::int64_t steps) {
  StepTimeSample times;
  std::optional<MetricsRecord> last_step, last_validation;
  try {
    for (const MetricsRecord& record : read_metrics(metrics)) {
      if (!record.validation) times.add(Seconds{record.ms / 1e3});
      (record.validation ? last_validation : last_step) = record;
    }
  } catch (const InputError&) {
    // A line that cannot be read: the figures are those of the lines before it.
  }
  RunSummary summary = of_steps(setup, times);
  summary.steps = steps;
  summary.restored = true;
  summary.last_step = std::move(last_step);
  summary.last_validation = std::move(last_validation);
  return summary;
}

}  // namespace

RunResults gather_results(const RunSetup& setup, const Worker& worker, Transport& transport,
                          const ClockMeetings& meetings) {
  RunResults results;
  std::vector<double> own{static_cast<double>(worker.peak_bytes().value),
                          static_cast<double>(worker.skipped_steps()), worker.core_share().value_or(0)};
  if (const auto card = worker.card_memory()) {
    for (const Bytes bytes : {card->reserved, card->used, card->total})
      own.push_back(static_cast<double>(bytes.value));
  }
  const std::vector<RankNeed> needs = own.size() > 3 ? memory_needs(setup) : std::vector<RankNeed>();
  for (const auto& rank : transport.all_gather(own)) {
    const auto bytes = [&rank](std::size_t i) { return Bytes{static_cast<std::int64_t>(rank.at(i))}; };
    results.peak.push_back(bytes(0));
    results.skipped_steps = std::max(results.skipped_steps, static_cast<std::int64_t>(rank.at(1)));
    results.core_shares.push_back(rank.at(2));
    if (rank.size() == 3) continue;
    const Bytes needed = needs.at(results.cards.size()).bytes;
    results.cards.push_back({.reserved = bytes(3), .used = bytes(4), .total = bytes(5), .needed = needed});
  }
  const std::string text = record_json(rank_record(setup, transport.rank(), worker, meetings)).dump();
  std::vector<RankRecord> records;
  transport.gather_text(setup.reporter(), text, [&](Rank rank, const std::string& written) {
    records.push_back(record_from(Json::parse(written), fmt::format("events of rank {}", rank.value)));
  });
  if (transport.rank() != setup.reporter()) return results;
  results.timeline = merged(fmt::format("{}, {}", setup.inputs().model.name, setup.plan().schedule.name),
                            std::move(records), setup.reporter().index());
  return results;
}

RunSummary summary_of(const RunSetup& setup, const RunResults& results, const RunReporter& reporter,
                      std::int64_t steps, int stopped_by) {
  RunSummary summary = of_steps(setup, reporter.step_times());
  summary.steps = steps;
  summary.stopped_by_signal = stopped_by;
  summary.skipped_steps = results.skipped_steps;
  summary.last_step = reporter.last_step();
  summary.last_validation = reporter.last_validation();
  summary.peak = results.peak;
  summary.cards = results.cards;
  if (std::ranges::any_of(results.core_shares, [](double share) { return share > 0; }))
    summary.core_shares = results.core_shares;
  return summary;
}

RunSummary earlier_summary(const RunSetup& setup, const RunPaths& paths, std::int64_t steps) {
  if (is_there(paths.summary())) return json::read_file<RunSummary>(paths.summary());
  return restored_summary(setup, paths.metrics(), steps);
}

std::vector<std::string> write_missing_results(const RunPaths& paths, const RunSetup& setup) {
  std::vector<std::string> remarks;
  const auto write = [&](const std::string& path, const Json& json, const char* what) {
    if (is_there(path)) return;
    write_json_file(path, json, Links::replace);
    remarks.push_back(fmt::format("the run was ended before it wrote {}: {}", path, what));
  };
  write(paths.summary(), json::write(earlier_summary(setup, paths, setup.shape().steps)),
        "written now from metrics.jsonl; what ranks used of their memory is lost");
  write(paths.timeline(), to_chrome_trace(Timeline{}), "written now without events, which are lost");
  return remarks;
}

void remove_results(const RunPaths& paths) {
  for (const std::string& path : {paths.summary(), paths.timeline()}) {
    const std::error_code error = storage().remove(path);
    if (error && error != std::errc::no_such_file_or_directory) {
      throw InputError({path, ""}, "cannot be removed: " + error.message());
    }
  }
}

}  // namespace stagecraft
