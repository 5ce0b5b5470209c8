#include "base/core_share.h"
#include "base/table.h"
#include "base/text.h"
#include "engine/records/report/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace stagecraft {
namespace {

std::string error_of(const Compared& figure) {
  const auto error = figure.error();
  return error ? signed_percent(*error) : "";
}

/// The unit of all times per step: milliseconds, or seconds where a step takes 10 s or more.
class StepUnit {
 public:
  explicit StepUnit(const RunReport& report)
      : seconds_(report.step.measured.value_or(report.step.predicted.value_or(Seconds{})) >= Seconds{10}) {}

  [[nodiscard]] const char* name() const { return seconds_ ? "s" : "ms"; }
  [[nodiscard]] std::string text(const std::optional<Seconds>& time) const {
    return ms_or_none(time && seconds_ ? *time / 1e3 : time);
  }
  /// "12.3 (11.9)": measured, predicted.
  [[nodiscard]] std::string both(const Compared& figure) const {
    return text(figure.measured) + (figure.predicted ? fmt::format(" ({})", text(figure.predicted)) : "");
  }

 private:
  bool seconds_;
};

std::string step_table(const RunReport& report) {
  const StepUnit unit(report);
  Table table({"<", "measured", "predicted", "error"});
  table.row({fmt::format("step, median {}", unit.name()), unit.text(report.step.measured),
             unit.text(report.step.predicted), error_of(report.step)});
  table.row({fmt::format("step, p99 {}", unit.name()), unit.text(report.step_p99), "", ""});
  table.row({"bubble", percent_or_none(report.bubble), percent_or_none(report.bubble_predicted), ""});
  table.row({"bubble with free transfers", "", percent_or_none(report.bubble_bound), ""});
  return table.text();
}

std::string stage_table(const RunReport& report) {
  const StepUnit unit(report);
  Table table({"stage", "rank", "forward", "backward", "optimizer", "send", "receive", "wait activation",
               "wait gradient", "wait loss", "collective", "other", "idle"});
  table.keys(2);
  for (const StageRow& row : report.stage_rows) {
    table.row({fmt::format("{}", row.stage.value), fmt::format("{}", row.rank.value), unit.both(row.forward),
               unit.both(row.backward), unit.both(row.optimizer), unit.both(row.send), unit.text(row.receive),
               unit.both(row.wait_activation), unit.both(row.wait_gradient), unit.text(row.wait_loss),
               unit.text(row.collective), unit.text(row.other), unit.both(row.idle)});
  }
  return table.text();
}

std::string action_table(const RunReport& report) {
  Table table({"stage", "<action", "count", "p50 ms", "p99 ms", "predicted ms", "error"});
  for (const ActionRow& row : report.actions) {
    table.row({fmt::format("{}", row.stage.value), row.kind, fmt::format("{}", row.count), row.p50, row.p99,
               row.predicted ? Table::Cell(*row.predicted) : "", error_of({row.p50, row.predicted})});
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
    std::vector<Table::Cell> cells{
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
  if (report.stopped_by_signal != 0) {
    const char* const name = sigabbrev_np(report.stopped_by_signal);
    remarks += fmt::format("the run was stopped by {} after step {}; train --resume goes on with it\n",
                           name != nullptr ? name : "a signal", report.steps);
  }
  if (const std::string shared = shared_cores(report.core_shares); !shared.empty()) remarks += shared + "\n";
  if (report.restored) {
    remarks +=
        "the end of the run was lost (it was killed, or its disk was full): step times are those of all "
        "steps "
        "in metrics.jsonl; memory and timeline were not kept\n";
  } else if (report.timeline_steps == 0) {
    remarks +=
        report.ended
            ? "there is no timeline (log.timeline_steps is 0, or the run's end was lost): stages and "
              "bubble were not measured\n"
            : "there are no steps that all ranks have written (live/): stages and bubble are not known\n";
  }
  return remarks;
}

std::string shared_cores(const std::vector<double>& shares) {
  const auto parts = std::ranges::count_if(shares, is_part_of_a_core);
  if (parts == 0) return "";
  const auto least = std::ranges::min_element(
      shares, {}, [](double share) { return is_part_of_a_core(share) ? share : kWholeCore; });
  const auto rank = least - shares.begin();
  const std::string who =
      parts == 1 ? fmt::format("rank {} got {} of a core while it computed", rank, format_percent(*least))
                 : fmt::format("{} of {} ranks got part of a core while they computed (least: rank {}, {})",
                               parts, shares.size(), rank, format_percent(*least));
  return who +
         ": others run on their cores, perhaps ranks in other containers or namespaces, which count all "
         "cores as "
         "theirs. Give each rank its own cores, or lower threads_per_rank";
}

std::string report_text(const RunReport& report) {
  return fmt::format(
      "{}, {}, {}, {} per step; {}{}\n{}\n"
      "Step\n{}\n"
      "Stages: {} per step, over the last {}; predicted in brackets\n{}\n"
      "Actions: single times\n{}\n"
      "Memory: peak of requested tensor bytes\n{}",
      report.model, report.schedule, plural(report.stages, "stage"),
      plural(report.micro_batches, "micro-batch"), plural(report.steps, "step"),
      samples_per_second_words(report), remarks_of(report), step_table(report), StepUnit(report).name(),
      plural(report.timeline_steps, "step"), stage_table(report), action_table(report), memory_table(report));
}

}  // namespace stagecraft
