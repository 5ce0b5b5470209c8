#include "base/table.h"
#include "base/text.h"
#include "engine/records/report/report.h"

#include <fmt/format.h>

#include <cmath>

namespace stagecraft {
namespace {

std::string error_of(const Compared& figure) {
  const auto error = figure.error();
  return error ? signed_percent(*error) : "";
}

std::string both(const Compared& figure) {
  return figure.predicted ? fmt::format("{} ({})", ms_or_none(figure.measured), format_ms(*figure.predicted))
                          : ms_or_none(figure.measured);
}

std::string step_table(const RunReport& report) {
  Table table({"<", "measured", "predicted", "error"});
  table.row({"step, median ms", ms_or_none(report.step.measured), ms_or_none(report.step.predicted),
             error_of(report.step)});
  table.row({"step, p99 ms", ms_or_none(report.step_p99), "", ""});
  table.row({"bubble", percent_or_none(report.bubble), percent_or_none(report.bubble_predicted), ""});
  table.row({"bubble with free transfers", "", percent_or_none(report.bubble_bound), ""});
  return table.text();
}

std::string stage_table(const RunReport& report) {
  Table table({"stage", "rank", "forward", "backward", "optimizer", "send", "receive", "wait activation",
               "wait gradient", "wait loss", "collective", "other", "idle"});
  for (const StageRow& row : report.stage_rows) {
    table.row({fmt::format("{}", row.stage.value), fmt::format("{}", row.rank.value), both(row.forward),
               both(row.backward), both(row.optimizer), both(row.send), ms_or_none(row.receive),
               both(row.wait_activation), both(row.wait_gradient), ms_or_none(row.wait_loss),
               ms_or_none(row.collective), ms_or_none(row.other), both(row.idle)});
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
  std::vector<std::string> columns{"rank", "measured peak", "proved", "measured of proved"};
  const bool cards = std::any_of(report.memory.begin(), report.memory.end(),
                                 [](const MemoryRow& row) { return row.card.has_value(); });
  if (cards) columns.insert(columns.end(), {"needed", "reserved", "card used", "card"});
  Table table(columns);
  for (const MemoryRow& row : report.memory) {
    const bool known = row.proved && row.proved->value > 0;
    std::vector<std::string> cells{
        fmt::format("{}", row.rank.value), row.measured ? format_bytes(*row.measured) : "-",
        known ? format_bytes(*row.proved) : "-",
        known && row.measured ? format_percent(static_cast<double>(row.measured->value) /
                                               static_cast<double>(row.proved->value))
                              : ""};
    if (cards) {
      const CardUse card = row.card.value_or(CardUse{});
      cells.push_back(known ? format_bytes(card.needed) : "-");
      for (const Bytes bytes : {card.reserved, card.used, card.total}) cells.push_back(format_bytes(bytes));
    }
    table.row(cells);
  }
  return table.text();
}

}  // namespace

std::string signed_percent(double fraction) {
  return std::isfinite(fraction) ? fmt::format("{:+.1f} %", fraction * 100) : "-";
}

std::string ms_or_none(const std::optional<Seconds>& time) { return time ? format_ms(*time) : "-"; }

std::string percent_or_none(const std::optional<double>& share) {
  return share ? format_percent(*share) : "-";
}

std::string samples_per_second_words(const RunReport& report) {
  return report.samples_per_second ? fmt::format(", {:.1f} samples/s", *report.samples_per_second) : "";
}

std::string remarks_of(const RunReport& report) {
  std::string remarks;
  if (report.computed_positions) {
    remarks +=
        fmt::format("samples were cut to {:.0f} % of their positions; predictions are of whole samples\n",
                    *report.computed_positions * 100);
  }
  if (report.restored) {
    remarks +=
        "the end of the run was lost (it was killed, or its disk was full): step times are those of all "
        "steps "
        "in metrics.jsonl; memory and timeline were not kept\n";
  } else if (report.timeline_steps == 0) {
    remarks += report.ended
                   ? "there is no timeline (log.timeline_steps is 0, or the run's end was lost): stages and "
                     "bubble were not measured\n"
                   : "no rank has written its last steps yet: stages and bubble are not known\n";
  }
  return remarks;
}

std::string report_text(const RunReport& report) {
  return fmt::format(
      "{}, {}, {}, {} per step; {}{}\n{}\n"
      "Step\n{}\n"
      "Stages: ms per step, over the last {}; predicted in brackets\n{}\n"
      "Actions: single times\n{}\n"
      "Memory: peak of requested tensor bytes\n{}",
      report.model, report.schedule, plural(report.stages, "stage"),
      plural(report.micro_batches, "micro-batch"), plural(report.steps, "step"),
      samples_per_second_words(report), remarks_of(report), step_table(report),
      plural(report.timeline_steps, "step"), stage_table(report), action_table(report), memory_table(report));
}

}  // namespace stagecraft
