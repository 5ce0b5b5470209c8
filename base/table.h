#pragma once

// Aligned tables and numbers with units, for people. One look everywhere.

#include "base/ids.h"

#include <string>
#include <utility>
#include <vector>

namespace stagecraft {

/// Text columns to the left, number columns to the right, two spaces between, a rule under the header.
class Table {
 public:
  /// A column whose name begins with '<' is left-aligned; all others are right-aligned.
  explicit Table(std::vector<std::string> columns);
  Table& row(std::vector<std::string> cells);
  Table& rule();  ///< a line across, before a total
  [[nodiscard]] std::string text(const std::string& indent = "  ") const;

 private:
  std::vector<std::string> columns_;
  std::vector<std::vector<std::string>> rows_;  // an empty row is a rule
};

/// A figure that is infinite or no number is "-".
[[nodiscard]] std::string format_bytes(Bytes bytes);  ///< "812 B", "1.5 MiB"
/// Both as format_bytes(), with the digits that tell them apart where they differ.
[[nodiscard]] std::pair<std::string, std::string> format_bytes_apart(Bytes a, Bytes b);
[[nodiscard]] std::string format_duration(Seconds seconds);  ///< "812 us", "1.53 ms", "2.1 s", "3 min 20 s"
[[nodiscard]] std::string format_ms(Seconds seconds);        ///< "12.345" (the unit stands in the header)
[[nodiscard]] std::string format_count(double count);        ///< "812", "12.3 k", "1.24 M"
[[nodiscard]] std::string format_percent(double fraction);   ///< 0.123 -> "12.3 %"

}  // namespace stagecraft
