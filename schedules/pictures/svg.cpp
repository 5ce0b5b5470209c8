#include "schedules/pictures/svg.h"

#include "base/table.h"
#include "schedules/pictures/axis.h"
#include "schedules/pictures/svg_boxes.h"
#include "schedules/pictures/svg_links.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>

namespace stagecraft {
namespace pictures {
namespace {

constexpr const char* kHeldFill = "#ccd3df";
constexpr const char* kThinHeldFill = "#8b98b0";  ///< of strips too thin for a line on top
constexpr const char* kFixedFill = "#aab4c5";
constexpr const char* kHeldLine = "#5c6b84";
constexpr const char* kPeakMark = "#c0392b";
constexpr const char* kCapacityLine = "#c0392b";

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

/// Whether the panel's capacity lies within the scale; far above it, it is not drawn.
bool shows_capacity(const Layout& layout, const Panel& panel) {
  return layout.memory && panel.capacity && *panel.capacity <= layout.memory_top;
}

/// Curves with their peaks marked, the capacity, the scale of each strip. Nothing without curves.
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

constexpr double kSwatch = 14;
constexpr double kFontSize = 11;

/// What occurs in the picture, and nothing else.
class Legend {
 public:
  /// `layout` needs its width, not yet its heights.
  explicit Legend(const Layout& layout) {
    std::array<bool, kLooks> used{};
    std::size_t stages = 1;
    bool idle = false;
    for (const PanelLayout& panel : layout.panels) {
      for (const Row& row : panel.rows) {
        stages = std::max(stages, row.stages.size());
        for (const Event* event : row.events) used.at(to_size(style_of(*event))) = true;
        idle = idle || row.events.empty() || row.events.back()->end < panel.end;
      }
    }
    for (std::size_t i = 0; i < kLooks; ++i) {
      const EventStyle event_style{static_cast<std::uint8_t>(i)};
      if (!used.at(i) || (is_sent(event_style) && layout.sizes.sends == 0)) continue;
      std::vector<std::string> fills{fill_of(event_style, 0, stages)};
      for (std::size_t k = 1;
           k < stages && fills.back() != style_of(event_style).deep && !is_wait(event_style); ++k) {
        fills.push_back(fill_of(event_style, k, stages));
      }
      const bool shades = fills.size() > 1;
      entries_.push_back(
          {Mark::swatch,
           fmt::format("{}{}", style_of(event_style).label, shades ? ", a shade per stage" : ""),
           std::move(fills)});
    }
    if (idle) entries_.push_back({Mark::swatch, "idle", {"#f2f2f2"}});
    if (layout.memory) {
      entries_.push_back({Mark::swatch, "memory held all the time", {kFixedFill}});
      entries_.push_back(
          {Mark::swatch, "for a while", {layout.sizes.memory > 20 ? kHeldFill : kThinHeldFill}});
      entries_.push_back({Mark::dot, "peak", {kPeakMark}});
      for (const PanelLayout& panel : layout.panels) {
        if (!shows_capacity(layout, *panel.panel)) continue;
        entries_.push_back({Mark::line, "capacity " + format_bytes(*panel.panel->capacity), {kCapacityLine}});
        break;
      }
    }
    place(layout);
  }

  [[nodiscard]] int lines() const { return entries_.empty() ? 0 : entries_.back().line + 1; }

  void write(SvgWriter& svg, double top) const {
    for (const Entry& entry : entries_) {
      const double y = top + entry.line * kLegendLine;
      double x = entry.x;
      for (const std::string& fill : entry.fills) {
        if (entry.mark == Mark::swatch) {
          svg.add("<rect x=\"{}\" y=\"{}\" width=\"14\" height=\"11\" fill=\"{}\"/>", x, y, fill);
        } else if (entry.mark == Mark::dot) {
          svg.add("<circle cx=\"{}\" cy=\"{}\" r=\"2.6\" fill=\"{}\"/>", x + kSwatch / 2, y + 6, fill);
        } else {
          svg.add("<path stroke=\"{}\" stroke-dasharray=\"5 3\" d=\"M{} {}h{}\"/>", fill, x, y + 6, kSwatch);
        }
        x += kSwatch;
      }
      svg.label(x + 5, y + 9.5, kFontSize, entry.label, "fill=\"#555555\"");
    }
  }

 private:
  enum class Mark : std::uint8_t { swatch, line, dot };
  struct Entry {
    Mark mark;
    std::string label;
    std::vector<std::string> fills;  ///< several: the shades of a rank's stages
    double x = 0;
    int line = 0;
  };

  void place(const Layout& layout) {
    double x = kMargin;
    int line = 0;
    for (Entry& entry : entries_) {
      const double width = kSwatch * static_cast<double>(entry.fills.size()) + 5 +
                           text_width(entry.label, kFontSize * 0.93) + 16;
      if (x + width > layout.width && x > kMargin) {
        x = kMargin;
        ++line;
      }
      entry.x = x;
      entry.line = line;
      x += width;
    }
  }

  std::vector<Entry> entries_;
};

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
      write_links(svg_, layout_, panel);
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
