#include "base/table.h"

#include "base/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace stagecraft {
namespace {

constexpr const char* kNoFigure = "-";

/// Code points, so that "µ" counts as one column.
std::size_t width_of(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }));
}

std::string padded(const std::string& text, std::size_t width, bool left) {
  const std::string space(width - std::min(width, width_of(text)), ' ');
  return left ? text + space : space + text;
}

}  // namespace

Table::Table(std::vector<std::string> columns) : columns_(std::move(columns)) {}

Table& Table::row(std::vector<std::string> cells) {
  STAGECRAFT_CHECK(cells.size() == columns_.size(),
                   "a table row has another number of cells than the header");
  rows_.push_back(std::move(cells));
  return *this;
}

Table& Table::rule() {
  rows_.emplace_back();
  return *this;
}

std::string Table::text(const std::string& indent) const {
  std::vector<std::size_t> widths;
  std::vector<bool> left;
  std::vector<std::string> header;
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    left.push_back(columns_[c].starts_with('<'));
    header.push_back(left[c] ? columns_[c].substr(1) : columns_[c]);
    widths.push_back(width_of(header[c]));
    for (const auto& row : rows_) {
      if (!row.empty()) widths[c] = std::max(widths[c], width_of(row[c]));
    }
  }
  const auto line = [&](const std::vector<std::string>& cells) {
    std::string out = indent;
    for (std::size_t c = 0; c < cells.size(); ++c)
      out += (c > 0 ? "  " : "") + padded(cells[c], widths[c], left[c]);
    out.erase(out.find_last_not_of(' ') + 1);
    return out + "\n";
  };
  std::size_t total = widths.empty() ? 0 : 2 * (widths.size() - 1);
  for (const std::size_t width : widths) total += width;
  const std::string rule = indent + std::string(total, '-') + "\n";
  std::string out = line(header) + rule;
  for (const auto& row : rows_) out += row.empty() ? rule : line(row);
  return out;
}

namespace {

std::string with_digits(Bytes bytes, int digits) {
  constexpr std::array units{"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes.value);
  std::size_t unit = 0;
  while (std::abs(value) >= 1024 && unit + 1 < units.size()) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes.value) : fmt::format("{:.{}f} {}", value, digits, units[unit]);
}

}  // namespace

std::string format_bytes(Bytes bytes) { return with_digits(bytes, 1); }

std::pair<std::string, std::string> format_bytes_apart(Bytes a, Bytes b) {
  constexpr int kMostDigits = 3;
  std::pair<std::string, std::string> both;
  for (int digits = 1; digits <= kMostDigits; ++digits) {
    both = {with_digits(a, digits), with_digits(b, digits)};
    if (a == b || both.first != both.second) return both;
  }
  return {fmt::format("{} B", a.value), fmt::format("{} B", b.value)};
}

std::string format_duration(Seconds seconds) {
  const double s = seconds.value;
  if (!std::isfinite(s)) return kNoFigure;
  if (s < 1e-3) return fmt::format("{:.0f} us", s * 1e6);
  if (s < 1) return fmt::format("{:.2f} ms", s * 1e3);
  if (s < 60) return fmt::format("{:.1f} s", s);
  const auto whole = static_cast<std::int64_t>(std::llround(s));
  if (whole < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02} min", whole / 3600, whole % 3600 / 60);
}

std::string format_ms(Seconds seconds) {
  return std::isfinite(seconds.value) ? fmt::format("{:.3f}", seconds.value * 1e3) : kNoFigure;
}

std::string format_count(double count) {
  if (!std::isfinite(count)) return kNoFigure;
  if (count < 1e4) return fmt::format("{:.0f}", count);
  if (count < 1e6) return fmt::format("{:.1f} k", count / 1e3);
  if (count < 1e9) return fmt::format("{:.2f} M", count / 1e6);
  return fmt::format("{:.2f} G", count / 1e9);
}

std::string format_percent(double fraction) {
  return std::isfinite(fraction) ? fmt::format("{:.1f} %", fraction * 100) : kNoFigure;
}

}  // namespace stagecraft
