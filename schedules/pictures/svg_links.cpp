#include "schedules/pictures/svg_links.h"

#include <map>
#include <string>
#include <tuple>
#include <utility>

namespace stagecraft::pictures {
namespace {

/// Which row computes which micro-batch on which stage.
using Computing = std::map<std::pair<StageId, MicroBatch>, const Row*>;

Computing computing_rows(const PanelLayout& panel) {
  Computing rows;
  for (const Row& row : panel.rows) {
    for (const Event* event : row.events) {
      if (is_compute(event->action.op)) rows[{event->action.stage, event->action.micro_batch}] = &row;
    }
  }
  return rows;
}

/// From the strip below the sender's boxes to the boxes of the rank that computes with it.
std::string skip_lines(const Layout& layout, const PanelLayout& panel) {
  const Computing rows = computing_rows(panel);
  std::string path;
  for (const Row& row : panel.rows) {
    for (const Event* event : row.events) {
      if (style_of(*event) != EventStyle::sent_skip) continue;
      const Tag& tag = event->action.tag;
      const auto to = rows.find({tag.to, tag.micro_batch()});
      if (to == rows.end() || to->second == &row) continue;
      const double from_y = row.top + layout.sizes.boxes + layout.sizes.sends / 2;
      const bool down = to->second->top > row.top;
      path += svg("M{} {}L{} {}", layout.x(event->begin), from_y, layout.x(event->end),
                  to->second->top + (down ? 0 : layout.sizes.boxes));
    }
  }
  return path;
}

/// Along the ends of the sum of one weight and one group: it ends when all have come.
std::string tie_lines(const Layout& layout, const PanelLayout& panel) {
  std::map<std::tuple<std::int64_t, TieId, Group>, std::pair<std::size_t, std::string>> sums;  // ranks, path
  for (const Row& row : panel.rows) {
    for (const Event* event : row.events) {
      if (style_of(*event) != EventStyle::tie) continue;
      auto& [ranks, path] = sums[{event->step, event->action.tie, event->action.group}];
      path += svg("{}{} {}", ranks++ == 0 ? "M" : "L", layout.x(event->end) - 1,
                  row.top + layout.sizes.boxes / 2);
    }
  }
  std::string all;
  for (const auto& [sum, line] : sums) {
    if (line.first > 1) all += line.second;
  }
  return all;
}

void write(SvgWriter& svg, const std::string& path, EventStyle of, const char* width) {
  if (path.empty()) return;
  svg.add("<path fill=\"none\" stroke=\"{}\" stroke-width=\"{}\" d=\"{}\"/>\n", style_of(of).fill, width,
          path);
}

}  // namespace

void write_links(SvgWriter& svg, const Layout& layout, const PanelLayout& panel) {
  if (layout.sizes.sends == 0) return;
  write(svg, skip_lines(layout, panel), EventStyle::sent_skip, "0.8");
  write(svg, tie_lines(layout, panel), EventStyle::tie, "2");
}

}  // namespace stagecraft::pictures
