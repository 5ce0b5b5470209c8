#include "engine/records/watch/screen_text.h"

#include "base/table.h"
#include "base/text.h"
#include "base/utf8.h"
#include "base/wrapped.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace stagecraft {
namespace {

std::string figure(const Json& value, const char* format) {
  return value.is_number() ? fmt::format(fmt::runtime(format), value.get<double>()) : "-";
}

std::string time_of(const Json& milliseconds) {
  return milliseconds.is_number() ? format_duration(Seconds{milliseconds.get<double>() / 1e3}) : "-";
}

std::string bar_of(double share, std::size_t width) {
  const auto full = static_cast<std::size_t>(std::clamp(share, 0.0, 1.0) * static_cast<double>(width));
  return "[" + std::string(full, '=') + std::string(width - full, ' ') + "]";
}

/// Mean values of `columns` stretches of the steps as stars, the lowest at the bottom.
std::string curve_of(const Json& values, std::size_t columns) {
  constexpr std::size_t kRows = 8;
  std::vector<double> means(std::min(columns, values.size()), std::numeric_limits<double>::quiet_NaN());
  double low = std::numeric_limits<double>::infinity(), high = -low;
  for (std::size_t c = 0; c < means.size(); ++c) {
    double sum = 0;
    int count = 0;
    for (std::size_t i = c * values.size() / means.size(); i < (c + 1) * values.size() / means.size(); ++i) {
      if (!values[i].is_number()) continue;
      sum += values[i].get<double>();
      ++count;
    }
    if (count == 0) continue;
    means[c] = sum / count;
    low = std::min(low, means[c]);
    high = std::max(high, means[c]);
  }
  if (!(low <= high)) return "";
  std::string text;
  for (std::size_t row = 0; row < kRows; ++row) {
    std::string line(means.size(), ' ');
    for (std::size_t c = 0; c < means.size(); ++c) {
      if (!std::isfinite(means[c])) continue;
      const double height = high > low ? (means[c] - low) / (high - low) : 0.5;
      if (kRows - 1 - static_cast<std::size_t>(std::lround(height * (kRows - 1))) == row) line[c] = '*';
    }
    const std::string label = row == 0           ? fmt::format("{:.4g}", high)
                              : row == kRows - 1 ? fmt::format("{:.4g}", low)
                                                 : "";
    line.erase(line.find_last_not_of(' ') + 1);
    text += fmt::format("  {:>9} |{}\n", label, line);
  }
  return text;
}

/// A rank's time as letters: "FFFBBBBBB......   ".
std::string shares_of(const Json& document, const Json& run, int columns) {
  const bool measured = run["measured"]["shares"].is_object();
  const Json& shares = run[measured ? "measured" : "predicted"]["shares"];
  if (!shares.is_object()) return "";
  constexpr std::size_t kMostRanks = 16;
  const auto width = static_cast<double>(std::clamp(columns - 14, 10, 72));
  const Json& newest = shares["ms"].back();
  const double window = shares["window_ms"].back().get<double>();
  if (window <= 0) return "";
  std::string text = fmt::format(
      "  each rank's time, {} (a dot: it waits)\n",
      measured ? fmt::format("step {}", shares["steps"].back().get<std::int64_t>()) : "as predicted");
  for (std::size_t rank = 0; rank < std::min(newest.size(), kMostRanks); ++rank) {
    std::string line;
    double until = 0;
    for (std::size_t style = 0; style < newest[rank].size(); ++style) {
      until += newest[rank][style].get<double>() / window * width;
      const bool idle = style >= document["styles"].size();
      const char letter = idle ? ' ' : document["styles"][style]["letter"].get<std::string>().front();
      const auto end = static_cast<std::size_t>(std::min(std::lround(until), std::lround(width)));
      if (end > line.size()) line.append(end - line.size(), letter);
    }
    text += fmt::format("  {:>9} |{}|\n", fmt::format("rank {}", rank), line);
  }
  if (newest.size() > kMostRanks) text += fmt::format("  and {} ranks more\n", newest.size() - kMostRanks);
  return text;
}

std::string text_of(const Json& document, const Json& run, int columns, bool alone) {
  const Json& progress = run["progress"];
  const Json& step = progress["step_time"];
  const auto width = static_cast<std::size_t>(std::clamp(columns - 20, 10, 60));
  std::string text =
      fmt::format("{}: {}", run["name"].get<std::string>(), progress["phase"].get<std::string>());
  if (const auto words = progress["words"].get<std::string>(); !words.empty()) text += " (" + words + ")";
  text += "\n  " + position_text(progress);
  if (progress["steps"].is_number()) {
    const double share = progress["step"].get<double>() / std::max(1.0, progress["steps"].get<double>());
    text += fmt::format("\n  {} {}", bar_of(share, width), format_percent(share));
  }
  text += '\n';
  if (progress["step"].get<std::int64_t>() > 0) {
    text +=
        fmt::format("  loss {}   norm {}   learning rate {}\n", figure(progress["loss"], "{:.5g}"),
                    figure(progress["gradient_norm"], "{:.4g}"), figure(progress["learning_rate"], "{:.3g}"));
    std::string terms;
    for (const auto& [name, term] : progress["terms"].items())
      terms += fmt::format("   {} {}", name, figure(term, "{:.4g}"));
    if (!terms.empty()) text += terms.substr(1) + "\n";
    if (const Json& validation = run["series"]["validation"]; !validation["step"].empty()) {
      text += fmt::format("  validation {} after step {}\n", figure(validation["loss"].back(), "{:.5g}"),
                          validation["step"].back().get<std::int64_t>());
    }
  }
  if (step.contains("median_ms")) {
    text += fmt::format("  {} per step, 8 of 10 take {} to {}\n", time_of(step["median_ms"]),
                        time_of(step["low_ms"]), time_of(step["high_ms"]));
  }
  if (step["predicted_ms"].is_number())
    text += fmt::format("  {} predicted\n", time_of(step["predicted_ms"]));
  const Json& marks = run["marks"];
  text += fmt::format("  {}, {}, newest checkpoint: {}\n",
                      plural(marks["skipped_steps"].get<std::int64_t>(), "skipped step"),
                      plural(static_cast<std::int64_t>(marks["restarts"].size()), "restart"),
                      marks["checkpoints"].empty()
                          ? "none"
                          : fmt::format("step {}", marks["checkpoints"].back()[0].get<std::int64_t>()));
  if (alone) {
    text += curve_of(run["series"]["loss"], static_cast<std::size_t>(std::clamp(columns - 14, 10, 100)));
    text += shares_of(document, run, columns);
  }
  for (const Json& remark : run["remarks"]) text += "  " + remark.get<std::string>() + "\n";
  return text;
}

/// Terminals would break longer lines, and what is drawn over them would leave their rest.
std::string cut_lines(const std::string& text, std::size_t columns) {
  std::string cut;
  std::size_t column = 0;
  for (const char c : text) {
    if (c == '\n')
      column = 0;
    else if (begins_character(c))
      ++column;
    if (column <= columns) cut += c;
  }
  return cut;
}

}  // namespace

std::string position_text(const Json& progress) {
  std::string text = fmt::format("step {}", progress["step"].get<std::int64_t>());
  if (progress["steps"].is_number()) text += fmt::format(" of {}", progress["steps"].get<std::int64_t>());
  if (progress["left_s"].is_number())
    text += fmt::format(", {} left", format_duration(Seconds{progress["left_s"].get<double>()}));
  return text;
}

std::string screen_text(const Json& document, int columns) {
  const Json& runs = document["runs"];
  std::string text;
  for (const Json& run : runs) {
    if (!text.empty()) text += '\n';
    text += text_of(document, run, columns, runs.size() == 1);
  }
  return cut_lines(wrapped(text, columns), static_cast<std::size_t>(std::max(columns, 20)));
}

}  // namespace stagecraft
