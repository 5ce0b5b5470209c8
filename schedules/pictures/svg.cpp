#include "stagecraft/schedules/pictures/svg.h"

#include "stagecraft/base/table.h"
#include "stagecraft/schedules/pictures/axis.h"
#include "stagecraft/schedules/pictures/svg_boxes.h"
#include "stagecraft/schedules/pictures/svg_legend.h"
#include "stagecraft/schedules/pictures/svg_memory.h"

#include <fmt/ranges.h>

namespace stagecraft {
namespace pictures {
namespace {

class Drawing {
 public:
  explicit Drawing(const std::vector<Panel>& panels) : layout_(lay_out(panels)), legend_(layout_) {
    settle(layout_, legend_.lines());
  }

  std::string text() {
    svg_.open(layout_.width, layout_.height, wait_patterns());
    axis();
    for (const PanelLayout& panel : layout_.panels) {
      header(panel);
      rows(panel);
      write_memory(svg_, layout_, panel);
      write_boxes(svg_, layout_, panel);
    }
    legend_.write(svg_, layout_.legend);
    return svg_.close();
  }

 private:
  void axis() {
    const Axis axis = axis_of(layout_.begin, layout_.end, layout_.plot / 78);
    svg_.add("<path stroke=\"#e6e6e6\" d=\"");
    for (const Seconds tick : axis.ticks) {
      svg_.add("M{} {}V{}", layout_.x(tick), layout_.top - 4, layout_.bottom + 4);
    }
    svg_.add("\"/>\n");
    for (std::size_t i = 0; i < axis.ticks.size(); ++i) {
      svg_.label(layout_.x(axis.ticks[i]), layout_.bottom + 18, 11, axis.labels[i],
                 "fill=\"#666666\" text-anchor=\"middle\"");
    }
  }

  void header(const PanelLayout& panel) {
    if (panel.panel->timeline.title.empty()) return;
    svg_.label(kMargin, panel.header + 16, 15, panel.panel->timeline.title,
               "font-weight=\"600\" fill=\"#222222\"");
    std::vector<std::string> figures = panel.panel->figures;
    if (panel.rows.size() < panel.ranks)
      figures.push_back(fmt::format("{} of {} ranks drawn", panel.rows.size(), panel.ranks));
    svg_.label(kMargin, panel.header + 33, 12, fmt::format("{}", fmt::join(figures, "  ·  ")),
               "fill=\"#555555\"");
  }

  /// Names, backgrounds, and on the right how busy the rank is and what it holds at most.
  void rows(const PanelLayout& panel) {
    const RowSizes& sizes = layout_.sizes;
    const double span = (panel.end - panel.begin).value;
    const double right = layout_.left + layout_.plot + 8;
    if (sizes.boxes < 20 && !panel.rows.empty()) {
      svg_.label(right, panel.rows.front().top - 4, sizes.font, layout_.memory ? "busy, peak" : "busy",
                 "fill=\"#8a8a8a\"");
    }
    for (const Row& row : panel.rows) {
      svg_.add("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"#f2f2f2\"/>\n",
               layout_.x(panel.begin), row.top, layout_.x(panel.end) - layout_.x(panel.begin), sizes.boxes);
      const double middle = row.top + sizes.boxes / 2 + sizes.font * 0.36;
      svg_.label(layout_.left - 8, middle, sizes.font, row.name, "fill=\"#333333\" text-anchor=\"end\"");
      const std::string busy = span > 0 ? format_percent(row.busy.value / span) : "";
      const std::string peak = row.memory != nullptr ? format_bytes(row.memory->peak()) : "";
      if (sizes.boxes < 20) {
        svg_.label(right, middle, sizes.font, fmt::format("{}  {}", busy, peak), "fill=\"#555555\"");
        continue;
      }
      if (!busy.empty()) svg_.label(right, middle, 11, busy + " busy", "fill=\"#555555\"");
      if (!peak.empty() && layout_.memory)
        svg_.label(right, layout_.memory_bottom(row) - sizes.memory / 2 + 4, 11, peak, "fill=\"#555555\"");
    }
  }

  Layout layout_;
  Legend legend_;
  SvgWriter svg_;
};

}  // namespace
}  // namespace pictures

std::string to_svg(const std::vector<Panel>& panels) { return pictures::Drawing(panels).text(); }

std::string to_svg(const Timeline& timeline) { return to_svg(std::vector<Panel>{Panel{timeline}}); }

}  // namespace stagecraft
