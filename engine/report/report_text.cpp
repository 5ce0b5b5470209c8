#include "stagecraft/base/table.h"
#include "stagecraft/engine/report/report.h"

#include <fmt/format.h>

#include <cmath>

namespace stagecraft {
namespace {

std::string error_of(const Compared& figure) {
  const auto error = figure.error();
  return error ? signed_percent(*error) : "";
}

std::string both(const Compared& figure) {
  return figure.predicted ? fmt::format("{} ({})", format_ms(figure.measured), format_ms(*figure.predicted))
                          : format_ms(figure.measured);
}

std::string percent(const std::optional<double>& share) { return share ? format_percent(*share) : "-"; }

std::string step_table(const RunReport& report) {
  Table table({"<", "measured", "predicted", "error"});
  table.row({"step, median ms", format_ms(report.step.measured),
             report.step.predicted ? format_ms(*report.step.predicted) : "-", error_of(report.step)});
  table.row({"step, p99 ms", format_ms(report.step_p99), "", ""});
  table.row({"bubble", format_percent(report.bubble), percent(report.bubble_predicted), ""});
  table.row({"bubble with free transfers", "", percent(report.bubble_bound), ""});
  return table.text();
}

std::string stage_table(const RunReport& report) {
  Table table({"stage", "rank", "forward", "backward", "optimizer", "send", "receive", "wait activation",
               "wait gradient", "wait loss", "collective", "other", "idle"});
  for (const StageRow& row : report.stage_rows) {
    table.row({fmt::format("{}", row.stage.value), fmt::format("{}", row.rank.value), both(row.forward),
               both(row.backward), both(row.optimizer), both(row.send), format_ms(row.receive),
               both(row.wait_activation), both(row.wait_gradient), format_ms(row.wait_loss),
               format_ms(row.collective), format_ms(row.other), both(row.idle)});
  }
  return table.text();
}

std::string action_table(const RunReport& report) {
  Table table({"stage", "<action", "count", "p50 ms", "p99 ms", "predicted ms", "error"});
  for (const ActionRow& row : report.actions) {
    table.row({fmt::format("{}", row.stage.value), row.kind, fmt::format("{}", row.count), format_ms(row.p50),
               format_ms(row.p99), row.predicted ? format_ms(*row.predicted) : "",
               error_of({row.p50, row.predicted})});
  }
  return table.text();
}

std::string memory_table(const RunReport& report) {
  Table table({"rank", "measured peak", "proved", "measured of proved"});
  for (const MemoryRow& row : report.memory) {
    const bool known = row.proved && row.proved->value > 0;
    table.row({fmt::format("{}", row.rank.value), format_bytes(row.measured),
               known ? format_bytes(*row.proved) : "-",
               known ? format_percent(static_cast<double>(row.measured.value) /
                                      static_cast<double>(row.proved->value))
                     : ""});
  }
  return table.text();
}

}  // namespace

std::string signed_percent(double fraction) {
  return std::isfinite(fraction) ? fmt::format("{:+.1f} %", fraction * 100) : "-";
}

std::string cut_words(const RunReport& report) {
  if (!report.computed_positions) return "";
  return fmt::format("samples were cut to {:.0f} % of their positions; predictions are of whole samples\n",
                     *report.computed_positions * 100);
}

std::string report_text(const RunReport& report) {
  return fmt::format(
      "{}, {}, {} stages, {} micro-batches per step; {} steps, {:.1f} samples/s\n{}\n"
      "Step\n{}\n"
      "Stages: ms per step, over the last {} steps; predicted in brackets\n{}\n"
      "Actions: single times\n{}\n"
      "Memory: peak of requested tensor bytes\n{}",
      report.model, report.schedule, report.stages, report.micro_batches, report.steps,
      report.samples_per_second, cut_words(report), step_table(report), report.timeline_steps,
      stage_table(report), action_table(report), memory_table(report));
}

}  // namespace stagecraft
