#include "stagecraft/schedules/pictures/svg_legend.h"

#include "stagecraft/base/table.h"
#include "stagecraft/schedules/pictures/svg_memory.h"

#include <algorithm>
#include <array>

namespace stagecraft::pictures {
namespace {

constexpr double kSwatch = 14;
constexpr double kFontSize = 11;

}  // namespace

Legend::Legend(const Layout& layout) {
  std::array<bool, kLooks> used{};
  std::size_t stages = 1;
  bool idle = false;
  for (const PanelLayout& panel : layout.panels) {
    for (const Row& row : panel.rows) {
      stages = std::max(stages, row.stages.size());
      for (const Event* event : row.events) used.at(static_cast<std::size_t>(style_of(*event))) = true;
      idle = idle || row.events.empty() || row.events.back()->end < panel.end;
    }
  }
  for (std::size_t i = 0; i < kLooks; ++i) {
    const EventStyle event_style{static_cast<std::uint8_t>(i)};
    if (!used.at(i) || (is_sent(event_style) && layout.sizes.sends == 0)) continue;
    std::vector<std::string> fills{fill_of(event_style, 0, stages)};
    for (std::size_t k = 1; k < stages && fills.back() != style_of(event_style).deep && !is_wait(event_style);
         ++k) {
      fills.push_back(fill_of(event_style, k, stages));
    }
    const bool shades = fills.size() > 1;
    add(Mark::swatch, fmt::format("{}{}", style_of(event_style).label, shades ? ", a shade per stage" : ""),
        std::move(fills));
  }
  if (idle) add(Mark::swatch, "idle", {"#f2f2f2"});
  if (layout.memory) {
    add(Mark::swatch, "memory held all the time", {kFixedFill});
    add(Mark::swatch, "for a while", {layout.sizes.memory > 20 ? kHeldFill : kThinHeldFill});
    add(Mark::dot, "peak", {kPeakMark});
    for (const PanelLayout& panel : layout.panels) {
      if (!shows_capacity(layout, *panel.panel)) continue;
      add(Mark::line, "capacity " + format_bytes(*panel.panel->capacity), {kCapacityLine});
      break;
    }
  }
  place(layout);
}

void Legend::add(Mark mark, std::string label, std::vector<std::string> fills) {
  entries_.push_back({mark, std::move(label), std::move(fills)});
}

void Legend::place(const Layout& layout) {
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

int Legend::lines() const { return entries_.empty() ? 0 : entries_.back().line + 1; }

void Legend::write(SvgWriter& svg, double top) const {
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

}  // namespace stagecraft::pictures
