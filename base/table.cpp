#include "base/table.h"

#include "base/error.h"
#include "base/utf8.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

namespace stagecraft {
namespace {

constexpr const char* kNoFigure = "-";

std::string padded(const std::string& text, std::size_t width, bool left) {
  const std::string space(width - std::min(width, width_of(text)), ' ');
  return left ? text + space : space + text;
}

}  // namespace

Table::Table(std::vector<std::string> columns) : columns_(std::move(columns)) {}

Table& Table::row(std::vector<Cell> cells) {
  STAGECRAFT_CHECK(cells.size() == columns_.size(),
                   "a table row has another number of cells than the header");
  rows_.push_back(std::move(cells));
  return *this;
}

Table& Table::in_seconds(bool all) {
  in_seconds_ = all;
  return *this;
}

Table& Table::keys(std::size_t columns) {
  keys_ = columns;
  return *this;
}

Table& Table::rule() {
  rows_.emplace_back();
  return *this;
}

Table::Column Table::column(std::size_t c) const {
  constexpr Seconds kLong{10};
  constexpr std::string_view kUnit = "ms";
  Column column;
  column.left = columns_[c].starts_with('<');
  column.name = column.left ? columns_[c].substr(1) : columns_[c];
  const bool is_long = column.name.ends_with(kUnit) && std::ranges::any_of(rows_, [&](const auto& row) {
                         return !row.empty() && row[c].time_.value_or(Seconds{}) >= kLong;
                       });
  if (is_long) column.name.replace(column.name.size() - kUnit.size(), kUnit.size(), "s");
  column.width = width_of(column.name);
  for (const auto& row : rows_) {
    std::string text;
    if (!row.empty() && row[c].time_) {
      text = format_ms(is_long || in_seconds_ ? *row[c].time_ / 1e3 : *row[c].time_);
    } else if (!row.empty()) {
      text = row[c].text_;
    }
    column.width = std::max(column.width, width_of(text));
    column.cells.push_back(std::move(text));
  }
  return column;
}

namespace {

/// A text is told by so much of it.
constexpr std::size_t kLeastText = 16;

/// Without its middle.
std::string shortened(const std::string& text, std::size_t width) {
  constexpr std::string_view kDots = "...";
  const std::size_t all = width_of(text);
  if (all <= width || width <= kDots.size()) return text;
  // The bytes before so many columns.
  const auto before = [&](std::size_t columns) {
    std::size_t at = 0;
    for (std::size_t seen = 0; at < text.size(); ++at) {
      if (begins_character(text[at]) && seen++ == columns) break;
    }
    return at;
  };
  const std::size_t kept = width - kDots.size(), front = kept - kept / 3;
  return text.substr(0, before(front)).append(kDots) + text.substr(before(all - (kept - front)));
}

}  // namespace

/// The widest texts first, so far that the line fits, where it can; else those alone that would fill a line by
/// themselves.
void Table::shorten_texts(std::vector<Column>& columns, std::size_t total) {
  std::size_t spare = 0;
  for (const Column& column : columns) {
    if (column.left)
      spare += column.width - std::min(column.width, std::max(kLeastText, width_of(column.name)));
  }
  const bool fits = total <= kMostColumns + spare;
  const std::size_t least = fits ? kLeastText : kMostColumns / 2;
  while (total > kMostColumns) {
    Column* widest = nullptr;
    for (Column& column : columns) {
      if (!column.left || column.width <= std::max(least, width_of(column.name))) continue;
      if (widest == nullptr || column.width > widest->width) widest = &column;
    }
    if (widest == nullptr) break;
    --widest->width;
    --total;
  }
  for (Column& column : columns) {
    for (std::string& cell : column.cells) cell = shortened(cell, column.width);
  }
}

std::string Table::text(const std::string& indent) const {
  std::vector<Column> columns;
  std::size_t total = indent.size();
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    columns.push_back(column(c));
    total += columns.back().width + (c > 0 ? 2 : 0);
  }
  shorten_texts(columns, total);
  std::string out;
  for (std::size_t first = 0; first < columns.size();) {
    std::vector<Column> shown(columns.begin(),
                              columns.begin() + static_cast<std::ptrdiff_t>(first > 0 ? keys_ : 0));
    std::size_t width = indent.size();
    for (const Column& key : shown) width += key.width + 2;
    std::size_t end = first;
    for (; end < columns.size(); ++end) {
      width += columns[end].width + 2;
      if (end > first && end > keys_ && width - 2 > kMostColumns) break;
      shown.push_back(columns[end]);
    }
    if (first > 0) out += '\n';
    out += block(shown, indent);
    first = end;
  }
  return out;
}

std::string Table::block(const std::vector<Column>& columns, const std::string& indent) const {
  const auto line = [&](const auto& cell_of) {
    std::string out = indent;
    for (std::size_t c = 0; c < columns.size(); ++c)
      out += (c > 0 ? "  " : "") + padded(cell_of(columns[c]), columns[c].width, columns[c].left);
    out.erase(out.find_last_not_of(' ') + 1);
    return out + "\n";
  };
  std::size_t total = columns.empty() ? 0 : 2 * (columns.size() - 1);
  for (const Column& column : columns) total += column.width;
  const std::string rule = indent + std::string(total, '-') + "\n";
  std::string out = line([](const Column& column) { return column.name; }) + rule;
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    out += rows_[r].empty() ? rule : line([r](const Column& column) { return column.cells[r]; });
  }
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
  if (std::abs(count) < 100) return fmt::format("{:.3g}", count);
  if (count < 1e4) return fmt::format("{:.0f}", count);
  if (count < 1e6) return fmt::format("{:.1f} k", count / 1e3);
  if (count < 1e9) return fmt::format("{:.2f} M", count / 1e6);
  return fmt::format("{:.2f} G", count / 1e9);
}

std::string format_percent(double fraction) {
  return std::isfinite(fraction) ? fmt::format("{:.1f} %", fraction * 100) : kNoFigure;
}

}  // namespace stagecraft
