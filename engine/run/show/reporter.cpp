#include "engine/run/show/reporter.h"

#include "engine/core/overflow.h"
#include "engine/run/show/printing.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <utility>

namespace stagecraft {
namespace {

/// NaN without the sign that processors give it, for people.
double plain(double loss) { return std::isnan(loss) ? std::numeric_limits<double>::quiet_NaN() : loss; }

std::map<std::string, double> terms_of(const StepReport& report, const Loss& loss) {
  std::map<std::string, double> terms;
  for (std::size_t i = 0; i < report.terms.size(); ++i) terms[loss.terms().at(i)] = plain(report.terms[i]);
  return terms;
}

}  // namespace

RunReporter::RunReporter(const RunSetup& setup, const std::string& metrics_path, const Screen& screen)
    : setup_(setup), metrics_(metrics_path), print_(screen.print), noted_step_(setup.start().step) {
  if (screen.draw) progress_.emplace(setup.start().step, setup.shape().steps, screen.draw);
}

void RunReporter::restart_clock() { mark_ = Clock::now(); }

Seconds RunReporter::lap() {
  const Clock::time_point now = Clock::now();
  const Seconds time{std::chrono::duration<double>(now - mark_).count()};
  mark_ = now;
  return time;
}

void RunReporter::fill_rates(MetricsRecord& record, const StepReport& report, Seconds time) {
  const auto per_second = [&](std::int64_t count) {
    return time.value > 0 ? static_cast<double>(count) / time.value : 0;
  };
  const auto since_1970 = std::chrono::system_clock::now().time_since_epoch();
  record.unix_time = std::chrono::duration<double>(since_1970).count();
  record.ms = time.value * 1e3;
  record.samples_per_second = per_second(report.samples);
  if (report.tokens > 0) record.tokens_per_second = per_second(report.tokens);
}

void RunReporter::show(const std::string& line) {
  if (!print_) return;
  if (progress_) progress_->clear();
  print_(line + "\n");
}

void RunReporter::write(const MetricsRecord& record) {
  constexpr std::size_t kMostOwed = 64 << 20;
  try {
    metrics_.append(record);
    told_ = false;
  } catch (const InputError& error) {
    const bool stop = setup_.config().checkpoint.on_failure == OnFailedSave::stop;
    if (stop || metrics_.owed_bytes() > kMostOwed) throw;
    if (!std::exchange(told_, true))
      show(fmt::format("{}. Its lines wait in memory, and the run goes on", error.what()));
  }
}

void RunReporter::step(const StepReport& report) {
  const Seconds time = lap();
  step_times_.add(time);
  MetricsRecord record;
  record.step = report.step + 1;
  record.loss = plain(report.loss);
  record.terms = terms_of(report, *setup_.inputs().loss);
  record.gradient_norm = report.gradient_norm;
  record.loss_scale = report.loss_scale;
  record.skipped = report.skipped;
  record.learning_rate = report.learning_rate;
  fill_rates(record, report, time);
  // A skipped step is told by its gradient: a loss alone spoils nothing.
  if (!std::isfinite(record.loss) && setup_.config().overflow_policy() == OnOverflow::stop) {
    show(step_line(record, setup_.shape().steps));
    throw NotFiniteError(report.step, fmt::format("the loss is {}. The run stops here", record.loss),
                         /*skip_helps=*/true);
  }
  noted_step_ = record.step;
  write(record);
  const Seconds elapsed{std::chrono::duration<double>(mark_ - began_).count()};
  const std::int64_t every = setup_.config().steps_per_print;
  if (every > 0 && (record.step % every == 0 || record.step == setup_.shape().steps)) {
    show(step_line(record, setup_.shape().steps,
                   time_left(setup_.start().step, record.step, setup_.shape().steps, elapsed)));
  }
  if (progress_) progress_->update(record.step, elapsed);
  last_step_ = record;
}

void RunReporter::validation(const StepReport& report, std::int64_t steps_made) {
  const Seconds time = lap();
  MetricsRecord record;
  record.step = steps_made;
  record.validation = true;
  record.loss = plain(report.loss);
  const Loss& loss = *setup_.inputs().loss;
  record.terms = terms_of(report, loss);
  record.no_targets = std::isnan(report.correct);
  if (loss.has_accuracy() && report.samples > 0 && !record.no_targets) {
    const std::int64_t units = loss.targets() == Targets::tokens ? report.tokens : report.samples;
    record.accuracy = report.correct / static_cast<double>(units);
  }
  fill_rates(record, report, time);
  write(record);
  show(validation_line(record, setup_.shape().steps, loss));
  last_validation_ = record;
}

}  // namespace stagecraft
