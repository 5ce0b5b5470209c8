#include "schedules/pictures/svg_memory.h"

#include "schedules/base/table.h"

#include <algorithm>
#include <cmath>

namespace stagecraft::pictures {
namespace {

/// The curve's outline as path commands from its first point on, at most two a pixel: of the levels within
/// one the highest is kept, and the last.
std::string outline(const Layout& layout, const Row& row, Seconds end) {
  std::string path;
  double column = -1;
  double x = layout.x(Seconds{layout.begin});
  double highest = layout.memory_y(row, row.memory->fixed);
  double last = highest;
  const auto flush = [&] {
    path += fmt::format("H{}V{}", short_number(x), short_number(highest));
    if (last != highest) path += fmt::format("V{}", short_number(last));
  };
  for (const MemoryCurve::Point& point : row.memory->points) {
    const double y = layout.memory_y(row, point.held);
    if (std::floor(layout.x(point.at)) == column) {
      highest = std::min(highest, y);
    } else {
      flush();
      x = layout.x(point.at);
      column = std::floor(x);
      highest = y;
    }
    last = y;
  }
  flush();
  return path + fmt::format("H{}", short_number(layout.x(end)));
}

void write_curve(SvgWriter& svg, const Layout& layout, const PanelLayout& panel, const Row& row) {
  const double bottom = layout.memory_bottom(row);
  const double left = layout.x(panel.begin);
  const double right = layout.x(panel.end);
  const double fixed = layout.memory_y(row, row.memory->fixed);
  const std::string line = outline(layout, row, panel.end);
  svg.add("<g><title>{}: {} at most, at {}; {} all the time</title>", escape(row.name),
          format_bytes(row.memory->peak()), format_duration(row.memory->peak_at() - panel.begin),
          format_bytes(row.memory->fixed));
  svg.add("<path fill=\"{}\" d=\"M{} {}{}V{}z\"/>", kHeldFill, short_number(left), short_number(bottom), line,
          short_number(bottom));
  svg.add("<path fill=\"{}\" d=\"{}\"/>", kFixedFill, box_path(left, fixed, right - left, bottom - fixed));
  svg.add("<path fill=\"none\" stroke=\"{}\" stroke-width=\"{}\" d=\"M{} {}{}\"/></g>\n", kHeldLine,
          layout.sizes.memory > 20 ? "0.9" : "0.5", short_number(left), short_number(fixed), line);
}

}  // namespace

bool shows_capacity(const Layout& layout, const Panel& panel) {
  return layout.memory && panel.capacity && *panel.capacity <= layout.memory_top;
}

void write_memory(SvgWriter& svg, const Layout& layout, const PanelLayout& panel) {
  if (!layout.memory) return;
  Bytes worst;
  for (const Row& row : panel.rows) {
    if (row.memory != nullptr) worst = std::max(worst, row.memory->peak());
  }
  const bool roomy = layout.sizes.memory > 20;
  for (const Row& row : panel.rows) {
    if (row.memory == nullptr) continue;
    write_curve(svg, layout, panel, row);
    if (shows_capacity(layout, *panel.panel)) {
      const double y = layout.memory_y(row, *panel.panel->capacity);
      svg.add("<path fill=\"none\" stroke=\"{}\" stroke-width=\"{}\" stroke-dasharray=\"5 3\" d=\"M{} "
              "{}H{}\"/>\n",
              kCapacityLine, roomy ? "1" : "0.6", short_number(layout.left), short_number(y),
              short_number(layout.left + layout.plot));
    }
    const Bytes peak = row.memory->peak();
    svg.add("<circle cx=\"{}\" cy=\"{}\" r=\"{}\" fill=\"{}\"/>\n",
            short_number(layout.x(row.memory->peak_at())), short_number(layout.memory_y(row, peak)),
            roomy ? "2.6" : "1.5", peak == worst ? kPeakMark : kHeldLine);
    if (!roomy) continue;
    svg.label(layout.left - 6, layout.memory_bottom(row) - layout.sizes.memory + 8, 8.5,
              format_bytes(layout.memory_top), "fill=\"#8a8a8a\" text-anchor=\"end\"");
    svg.label(layout.left - 6, layout.memory_bottom(row), 8.5, "0", "fill=\"#8a8a8a\" text-anchor=\"end\"");
  }
}

}  // namespace stagecraft::pictures
