#include "stagecraft/schedules/pictures/svg_memory.h"

#include "stagecraft/base/table.h"

#include <algorithm>

namespace stagecraft::pictures {
namespace {

/// The curve's outline as path commands, from the level held all the time at the left end on. Of the levels
/// within `step` pixels the highest is kept, and the last.
std::string outline(const Layout& layout, const Row& row, double step) {
  std::string path;
  double drawn = layout.memory_y(row, row.memory->fixed);
  double x = 0;
  double highest = drawn;
  double last = drawn;
  const auto move_to = [&](double y) {
    if (y != drawn) path += svg("V{}", y);
    drawn = y;
  };
  const auto flush = [&] {
    if (highest == drawn && last == drawn) return;
    path += svg("H{}", x);
    move_to(highest);
    move_to(last);
  };
  for (const MemoryCurve::Point& point : row.memory->points) {
    const double y = layout.memory_y(row, point.held);
    if (layout.x(point.at) - x < step) {
      highest = std::min(highest, y);
    } else {
      flush();
      x = layout.x(point.at);
      highest = y;
    }
    last = y;
  }
  flush();
  return path;
}

void write_curve(SvgWriter& svg, const Layout& layout, const PanelLayout& panel, const Row& row) {
  const bool roomy = layout.sizes.memory > 20;
  const double bottom = layout.memory_bottom(row);
  const double left = layout.x(panel.begin);
  const double right = layout.x(panel.end);
  const double fixed = layout.memory_y(row, row.memory->fixed);
  svg.add("<g><title>{}: {} at most, at {}; {} all the time</title>", escape(row.name),
          format_bytes(row.memory->peak()), format_duration(row.memory->peak_at()),
          format_bytes(row.memory->fixed));
  svg.add("<path fill=\"{}\"{} d=\"M{} {}V{}{}H{}V{}z\"/>", roomy ? kHeldFill : kThinHeldFill,
          roomy ? fmt::format(" stroke=\"{}\" stroke-width=\".9\"", kHeldLine) : "", left, bottom, fixed,
          outline(layout, row, roomy ? 0.5 : 2), right, bottom);
  svg.add("<path fill=\"{}\" d=\"{}\"/></g>\n", kFixedFill,
          box_path(left, fixed + 0.4, right - left, std::max(0.0, bottom - fixed - 0.4)));
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
      svg.add(
          "<path fill=\"none\" stroke=\"{}\" stroke-width=\"{}\" stroke-dasharray=\"5 3\" d=\"M{} "
          "{}H{}\"/>\n",
          kCapacityLine, roomy ? "1" : "0.6", layout.left, y, layout.left + layout.plot);
    }
    const Bytes peak = row.memory->peak();
    svg.add("<circle cx=\"{}\" cy=\"{}\" r=\"{}\" fill=\"{}\"/>\n", layout.x(row.memory->peak_at()),
            layout.memory_y(row, peak), roomy ? "2.6" : "1.5", peak == worst ? kPeakMark : kHeldLine);
    if (!roomy) continue;
    svg.label(layout.left - 6, layout.memory_bottom(row) - layout.sizes.memory + 8, 8.5,
              format_bytes(layout.memory_top), "fill=\"#8a8a8a\" text-anchor=\"end\"");
    svg.label(layout.left - 6, layout.memory_bottom(row), 8.5, "0", "fill=\"#8a8a8a\" text-anchor=\"end\"");
  }
}

}  // namespace stagecraft::pictures
