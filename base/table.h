#pragma once

// Aligned tables and numbers with units, for people. One look everywhere.

#include "base/ids.h"

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace stagecraft {

/// Text columns to the left, number columns to the right, two spaces between, a rule under the header. No line is longer
/// than kMostColumns: long texts lose their middle ("4,9,1...7,120"), and columns that still have no room stand in a
/// table below, behind the key columns again.
class Table {
 public:
  static constexpr std::size_t kMostColumns = 120;

  /// A text, or a time. Times are in milliseconds, as the column's name says ("step ms"); where the longest is
  /// 10 s or more, name and figures are in seconds.
  class Cell {
   public:
    Cell(std::string text) : text_(std::move(text)) {}  // NOLINT: as cells are written
    Cell(const char* text) : text_(text) {}             // NOLINT
    Cell(Seconds time) : time_(time) {}                 // NOLINT
    Cell(const std::optional<Seconds>& time) : text_(time ? "" : "-"), time_(time) {}  // NOLINT

   private:
    friend class Table;
    std::string text_;
    std::optional<Seconds> time_{};
  };

  /// A column whose name begins with '<' is left-aligned; all others are right-aligned.
  explicit Table(std::vector<std::string> columns);
  Table& row(std::vector<Cell> cells);
  Table& in_seconds(bool all);       ///< times whose columns do not name a unit
  Table& keys(std::size_t columns);  ///< the first so many say what a row is of (default: 1)
  Table& rule();                     ///< a line across, before a total
  [[nodiscard]] std::string text(const std::string& indent = "  ") const;

 private:
  struct Column {
    std::string name;
    bool left = false;
    std::vector<std::string> cells;  ///< by row; of a rule none
    std::size_t width = 0;
  };
  [[nodiscard]] Column column(std::size_t c) const;
  static void shorten_texts(std::vector<Column>& columns, std::size_t total);
  [[nodiscard]] std::string block(const std::vector<Column>& columns, const std::string& indent) const;

  std::size_t keys_ = 1;
  bool in_seconds_ = false;
  std::vector<std::string> columns_;
  std::vector<std::vector<Cell>> rows_;  // an empty row is a rule
};

/// A figure that is infinite or no number is "-".
[[nodiscard]] std::string format_bytes(Bytes bytes);  ///< "812 B", "1.5 MiB"
/// Both as format_bytes(), with the digits that tell them apart where they differ.
[[nodiscard]] std::pair<std::string, std::string> format_bytes_apart(Bytes a, Bytes b);
[[nodiscard]] std::string format_duration(Seconds seconds);  ///< "812 us", "1.53 ms", "2.1 s", "3 min 20 s"
[[nodiscard]] std::string format_ms(Seconds seconds);        ///< "12.345" (the unit stands in the header)
[[nodiscard]] std::string format_count(double count);        ///< "5.12", "812", "12.3 k", "1.24 M"
[[nodiscard]] std::string format_percent(double fraction);   ///< 0.123 -> "12.3 %"

}  // namespace stagecraft
