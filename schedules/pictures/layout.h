#pragma once

// Where everything in an SVG picture goes, in pixels: which ranks have a row, how high rows are, how long a
// second is. Rows get thinner the more there are; time is squeezed into a width that fits a screen.

#include "schedules/pictures/event_styles.h"
#include "schedules/pictures/panel.h"

#include <cstddef>
#include <string>
#include <vector>

namespace stagecraft::pictures {

/// One rank, with what belongs into its row.
struct Row {
  std::size_t rank = 0;
  std::string name{};
  std::vector<const Event*> events{};  ///< by begin
  std::vector<StageId> stages{};       ///< that it computes for, ascending
  const MemoryCurve* memory = nullptr;
  Seconds busy{};
  double top = 0;  ///< of its boxes; sends and memory lie below

  /// Position of an event's stage among the row's, for its shade.
  [[nodiscard]] std::size_t stage_position(const Event& event) const;
};

/// Heights by the number of rows.
struct RowSizes {
  double boxes, sends, memory, gap, font;
};

/// A panel's rows and where they stand.
struct PanelLayout {
  const Panel* panel = nullptr;
  std::vector<Row> rows{};
  std::size_t ranks = 0;  ///< all of them; more than rows where only every n-th has one
  Seconds begin{}, end{};
  double header = 0;  ///< top of title and figures
};

/// At most so many ranks of a picture have rows; of more, evenly chosen ones, the first and the last among
/// them.
inline constexpr std::size_t kMostRows = 128;
/// `most` of the numbers 0 to n - 1, evenly spread, both ends included.
[[nodiscard]] std::vector<std::size_t> spread(std::size_t n, std::size_t most);

/// A panel's ranks as rows, `most` at most; `top` stays 0.
[[nodiscard]] PanelLayout rows_of(const Panel& panel, std::size_t most);

struct Layout {
  std::vector<PanelLayout> panels{};
  RowSizes sizes{};
  bool dense = false;          ///< single boxes could not be told apart: rows show shares, and no sends
  bool memory = false;         ///< some panel has curves
  Bytes memory_top{};          ///< what the height of a memory strip stands for
  double begin = 0, end = 0;   ///< seconds, of all panels
  double left = 0, plot = 0;   ///< of the time axis
  double legend = 0;           ///< top of the legend
  double top = 0, bottom = 0;  ///< of all rows
  double width = 0, height = 0;

  [[nodiscard]] double x(Seconds at) const { return left + (at.value - begin) / (end - begin) * plot; }
  [[nodiscard]] double memory_bottom(const Row& row) const;
  [[nodiscard]] double memory_y(const Row& row, Bytes held) const;
};

inline constexpr double kMargin = 18;
inline constexpr double kLegendLine = 17;

/// `legend_lines` of legend stand under the only panel's title, or above the first of several.
[[nodiscard]] Layout lay_out(const std::vector<Panel>& panels);
/// Makes room for the legend, whose lines depend on the width, and so settles everything vertical.
void settle(Layout& layout, int legend_lines);

}  // namespace stagecraft::pictures
