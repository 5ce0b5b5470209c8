#include "base/table.h"
#include "engine/records/report/report.h"
#include "schedules/pictures/svg.h"
#include "schedules/pictures/svg_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace stagecraft {
namespace {

constexpr const char* kStyle = R"(
body { font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 1400px; padding: 0 1em; color: #1b1f24; }
h1 { font-size: 1.5em; margin-bottom: 0; } h2 { font-size: 1.15em; margin-top: 2em; } p.sub { color: #57606a; margin-top: .2em; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; } .wide { overflow-x: auto; font-size: .9em; }
th, td { padding: .25em .7em; text-align: right; border-bottom: 1px solid #d8dee4; white-space: nowrap; }
th { color: #57606a; font-weight: 600; } th:first-child, td:first-child, td.l, th.l { text-align: left; }
td small { color: #57606a; } svg { max-width: 100%; height: auto; }
@media (prefers-color-scheme: dark) { body { background: #fff; } }
)";

std::string row_of(const std::vector<std::string>& cells, const char* tag = "td") {
  std::string row = "<tr>";
  for (const std::string& cell : cells) row += fmt::format("<{0}>{1}</{0}>", tag, cell);
  return row + "</tr>\n";
}

std::string table_of(const std::vector<std::string>& header, const std::string& rows) {
  return fmt::format("<div class=\"wide\"><table>\n{}{}</table></div>\n", row_of(header, "th"), rows);
}

/// A paragraph per line.
std::string paragraphs(const std::string& lines) {
  std::string out;
  for (std::size_t at = 0; at < lines.size();) {
    const std::size_t end = std::min(lines.find('\n', at), lines.size());
    out += "<p class=\"sub\">" + lines.substr(at, end - at) + "</p>\n";
    at = end + 1;
  }
  return out;
}

/// Measured, and below it the prediction with its error.
std::string measured_over_predicted(const Compared& figure) {
  if (!figure.predicted) return ms_or_none(figure.measured);
  const auto error = figure.error();
  return fmt::format("{}<br><small>{}{}</small>", ms_or_none(figure.measured), format_ms(*figure.predicted),
                     error ? ", " + signed_percent(*error) : "");
}

std::string html_step_table(const RunReport& report) {
  const auto error = report.step.error();
  return table_of(
      {"", "measured", "predicted", "error"},
      row_of({"step, median ms", ms_or_none(report.step.measured), ms_or_none(report.step.predicted),
              error ? signed_percent(*error) : ""}) +
          row_of({"step, p99 ms", ms_or_none(report.step_p99), "", ""}) +
          row_of({"bubble", percent_or_none(report.bubble), percent_or_none(report.bubble_predicted), ""}) +
          row_of({"bubble with free transfers", "", percent_or_none(report.bubble_bound), ""}));
}

std::string html_stage_table(const RunReport& report) {
  std::string rows;
  for (const StageRow& row : report.stage_rows) {
    rows += row_of({fmt::format("stage {} <small>rank {}</small>", row.stage.value, row.rank.value),
                    measured_over_predicted(row.forward), measured_over_predicted(row.backward),
                    measured_over_predicted(row.optimizer), measured_over_predicted(row.send),
                    ms_or_none(row.receive), measured_over_predicted(row.wait_activation),
                    measured_over_predicted(row.wait_gradient), ms_or_none(row.wait_loss),
                    ms_or_none(row.collective), ms_or_none(row.other), measured_over_predicted(row.idle)});
  }
  return table_of({"", "forward", "backward", "optimizer", "send", "receive", "wait activation",
                   "wait gradient", "wait loss", "collective", "other", "idle"},
                  rows);
}

std::string html_action_table(const RunReport& report) {
  std::string rows;
  for (const ActionRow& row : report.actions) {
    const auto error = Compared{row.p50, row.predicted}.error();
    rows += row_of({fmt::format("stage {} {}", row.stage.value, row.kind), fmt::format("{}", row.count),
                    format_ms(row.p50), format_ms(row.p99), row.predicted ? format_ms(*row.predicted) : "",
                    error ? signed_percent(*error) : ""});
  }
  return table_of({"", "count", "p50 ms", "p99 ms", "predicted ms", "error"}, rows);
}

std::string html_memory_table(const RunReport& report) {
  std::string rows;
  bool cards = false;
  for (const MemoryRow& row : report.memory) {
    const bool known = row.proved && row.proved->value > 0;
    std::vector<std::string> cells{fmt::format("rank {}", row.rank.value),
                                   row.measured ? format_bytes(*row.measured) : "-",
                                   known ? format_bytes(*row.proved) : "-"};
    if (row.card) {
      cards = true;
      cells.push_back(known ? format_bytes(row.card->needed) : "-");
      for (const Bytes bytes : {row.card->reserved, row.card->used, row.card->total})
        cells.push_back(format_bytes(bytes));
    }
    rows += row_of(cells);
  }
  std::vector<std::string> columns{"", "measured peak", "proved"};
  if (cards) columns.insert(columns.end(), {"needed", "reserved", "card used", "card"});
  return table_of(columns, rows);
}

/// The loss over steps: training as a line, validation as dots. Losses that are no numbers are left out.
std::string loss_curve(const std::vector<MetricsRecord>& metrics) {
  constexpr double kWidth = 1100, kHeight = 260, kLeft = 60, kBottom = 30;
  double low = std::numeric_limits<double>::infinity();
  double high = -low;
  std::int64_t last = 1;
  for (const MetricsRecord& record : metrics) {
    if (!std::isfinite(record.loss)) continue;
    low = std::min(low, record.loss);
    high = std::max(high, record.loss);
    last = std::max(last, record.step);
  }
  if (!(low <= high)) return "<p>No losses.</p>";
  if (low == high) high = low + 1;
  const auto x = [&](std::int64_t step) {
    return kLeft + (kWidth - kLeft - 10) * static_cast<double>(step) / static_cast<double>(last);
  };
  const auto y = [&](double loss) { return 10 + (kHeight - kBottom - 10) * (high - loss) / (high - low); };
  std::string line;
  std::string dots;
  for (const MetricsRecord& record : metrics) {
    if (!std::isfinite(record.loss)) continue;
    if (record.validation) {
      dots += fmt::format(
          "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\" fill=\"#bc4c00\"><title>validation after step {}: "
          "{:.5g}</title></circle>\n",
          x(record.step), y(record.loss), record.step, record.loss);
    } else {
      line += fmt::format("{:.1f},{:.1f} ", x(record.step), y(record.loss));
    }
  }
  std::string svg = fmt::format(
      "<svg viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" font-family=\"sans-serif\" "
      "font-size=\"12\">\n",
      kWidth, kHeight);
  for (int i = 0; i <= 4; ++i) {
    const double loss = low + (high - low) * i / 4;
    svg += fmt::format(
        "<line x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\" stroke=\"#d8dee4\"/><text x=\"{3}\" "
        "y=\"{4:.1f}\" "
        "text-anchor=\"end\" fill=\"#57606a\">{5:.4g}</text>\n",
        kLeft, kWidth - 10, y(loss), kLeft - 6, y(loss) + 4, loss);
  }
  return svg + fmt::format(
                   "<polyline fill=\"none\" stroke=\"#0969da\" stroke-width=\"1.3\" points=\"{}\"/>\n{}<text "
                   "x=\"{}\" "
                   "y=\"{}\" text-anchor=\"end\" fill=\"#57606a\">step {}; line: training, dots: "
                   "validation</text></svg>\n",
                   line, dots, kWidth - 10, kHeight - 8, last);
}

}  // namespace

std::string report_html(const RunReport& report, const RunFiles& run) {
  const std::string title = fmt::format("{}, {}", report.model, report.schedule);
  std::string html = fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta "
      "charset=\"utf-8\"><title>{0}</title><style>{1}</style></head>"
      "<body>\n<h1>{0}</h1>\n<p class=\"sub\">{2} stages, {3} micro-batches per step, {4} steps{5}</p>\n{6}",
      pictures::escape(title), kStyle, report.stages, report.micro_batches, report.steps,
      samples_per_second_words(report), paragraphs(remarks_of(report)));
  html += "<h2>Step</h2>\n" + html_step_table(report);
  html +=
      fmt::format(
          "<h2>Where the time went</h2>\n<p class=\"sub\">ms per step, over the last {} steps; below, what "
          "was predicted</p>\n",
          report.timeline_steps) +
      html_stage_table(report);
  html += fmt::format("<h2>The last {} steps</h2>\n", kDrawnSteps) +
          (run.timeline.events.empty() ? "<p>No timeline was kept.</p>" : to_svg(last_steps(run.timeline)));
  html += "<h2>Loss</h2>\n" + loss_curve(run.metrics);
  html += "<h2>Single actions</h2>\n" + html_action_table(report);
  html +=
      "<h2>Memory</h2>\n<p class=\"sub\">Peak of requested tensor bytes</p>\n" + html_memory_table(report);
  return html + "</body></html>\n";
}

}  // namespace stagecraft
