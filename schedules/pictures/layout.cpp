#include "schedules/pictures/layout.h"

#include "schedules/pictures/svg_writer.h"

#include <fmt/format.h>

#include <algorithm>

namespace stagecraft::pictures {
namespace {

constexpr double kMinPlot = 860;
constexpr double kMaxPlot = 1800;
constexpr double kForwardBox = 17;   // wanted width of a forward's box: two digits fit
constexpr double kTitle = 44;        // title and figures
constexpr double kAxis = 34;         // ticks and their unit
constexpr double kRightColumn = 96;  // busy share and peak

RowSizes sizes_for(std::size_t rows) {
  if (rows <= 8) return {26, 10, 30, 13, 12};
  if (rows <= 16) return {20, 8, 22, 9, 11};
  if (rows <= 32) return {14, 0, 15, 6, 10};
  if (rows <= 64) return {10, 0, 9, 4, 8.5};
  return {7, 0, 6, 2, 7.5};
}

template <class Visit>
void each_event(const Layout& layout, const Visit& visit) {
  for (const PanelLayout& panel : layout.panels) {
    for (const Row& row : panel.rows) {
      for (const Event* event : row.events) visit(style_of(*event), (event->end - event->begin).value);
    }
  }
}

/// The median forward gets its wanted width, within what fits a screen.
double plot_width(const Layout& layout) {
  std::vector<double> forwards;
  each_event(layout, [&](EventStyle style, double seconds) {
    if (style == EventStyle::forward) forwards.push_back(seconds);
  });
  if (forwards.empty()) return kMinPlot;
  const auto middle = forwards.begin() + static_cast<std::ptrdiff_t>(forwards.size() / 2);
  std::nth_element(forwards.begin(), middle, forwards.end());
  if (*middle <= 0) return kMinPlot;
  return std::clamp(kForwardBox * (layout.end - layout.begin) / *middle, kMinPlot, kMaxPlot);
}

/// Whether the mean box is too narrow to be told from its neighbours.
bool is_dense(const Layout& layout) {
  constexpr double kLeastWidth = 1.3;
  std::size_t boxes = 0;
  double seconds = 0;
  each_event(layout, [&](EventStyle style, double of_event) {
    if (is_sent(style)) return;
    ++boxes;
    seconds += of_event;
  });
  const double width = seconds / (layout.end - layout.begin) * layout.plot;
  return boxes > 0 && width / static_cast<double>(boxes) < kLeastWidth;
}

/// Capacities far above the peaks would press the curves flat: they are left out, and told in words.
Bytes memory_top(const std::vector<Panel>& panels) {
  Bytes top;
  for (const Panel& panel : panels) {
    for (const MemoryCurve& curve : panel.memory) top = std::max(top, curve.peak());
  }
  const Bytes peak = top;
  for (const Panel& panel : panels) {
    if (panel.capacity && panel.capacity->value <= 2 * peak.value) top = std::max(top, *panel.capacity);
  }
  return top;
}

}  // namespace

std::size_t Row::stage_position(const Event& event) const {
  const auto found = std::lower_bound(stages.begin(), stages.end(), event.action.stage);
  return to_size(found - stages.begin());
}

std::vector<std::size_t> spread(std::size_t n, std::size_t most) {
  std::vector<std::size_t> chosen;
  const std::size_t count = std::min(n, most);
  for (std::size_t i = 0; i < count; ++i) chosen.push_back(count == 1 ? 0 : i * (n - 1) / (count - 1));
  return chosen;
}

PanelLayout rows_of(const Panel& panel, std::size_t most) {
  const Timeline& timeline = panel.timeline;
  PanelLayout out;
  out.panel = &panel;
  out.ranks = std::max(timeline.rank_names.size(), panel.memory.size());
  if (!timeline.events.empty()) out.begin = out.end = timeline.events.front().begin;
  for (const Event& event : timeline.events) {
    if (event.rank.valid()) out.ranks = std::max(out.ranks, event.rank.index() + 1);
    out.begin = std::min(out.begin, event.begin);
    out.end = std::max(out.end, event.end);
  }
  std::vector<Row*> row_of(out.ranks);
  out.rows.resize(std::min(out.ranks, most));
  std::size_t next = 0;
  for (const std::size_t rank : spread(out.ranks, most)) {
    Row& row = out.rows[next++];
    row_of[rank] = &row;
    row.rank = rank;
    row.name = rank < timeline.rank_names.size() ? timeline.rank_names[rank] : fmt::format("rank {}", rank);
    if (rank < panel.memory.size()) row.memory = &panel.memory[rank];
  }
  for (const Event& event : timeline.events) {
    Row* row = event.rank.valid() ? row_of[event.rank.index()] : nullptr;
    if (row == nullptr || event.end <= event.begin) continue;
    row->events.push_back(&event);
    if (is_busy(style_of(event))) row->busy += event.end - event.begin;
    if (is_compute(event.action.op)) row->stages.push_back(event.action.stage);
  }
  for (Row& row : out.rows) {
    std::ranges::sort(row.stages);
    row.stages.erase(std::unique(row.stages.begin(), row.stages.end()), row.stages.end());
    std::ranges::stable_sort(row.events, {}, &Event::begin);
  }
  return out;
}

double Layout::memory_bottom(const Row& row) const {
  return row.top + sizes.boxes + sizes.sends + sizes.memory;
}

double Layout::memory_y(const Row& row, Bytes held) const {
  const double share = static_cast<double>(held.value) / static_cast<double>(memory_top.value);
  return memory_bottom(row) - share * (sizes.memory - 2);
}

Layout lay_out(const std::vector<Panel>& panels) {
  Layout layout;
  std::size_t rows = 0;
  double label = text_width("rank 0", 12);
  for (const Panel& panel : panels) {
    layout.panels.push_back(rows_of(panel, std::max<std::size_t>(2, kMostRows / panels.size())));
    const PanelLayout& added = layout.panels.back();
    rows += added.rows.size();
    const bool first = layout.panels.size() == 1;
    layout.begin = first ? added.begin.value : std::min(layout.begin, added.begin.value);
    layout.end = first ? added.end.value : std::max(layout.end, added.end.value);
  }
  if (layout.end <= layout.begin) layout.end = layout.begin + 1e-3;
  layout.memory_top = memory_top(panels);
  layout.memory = layout.memory_top > Bytes{};
  layout.sizes = sizes_for(rows);
  if (!layout.memory) layout.sizes.memory = 0;
  for (const PanelLayout& panel : layout.panels) {
    for (const Row& row : panel.rows) label = std::max(label, text_width(row.name, layout.sizes.font));
  }
  layout.left = kMargin + label + 12;
  layout.plot = plot_width(layout);
  layout.dense = is_dense(layout);
  if (layout.dense) layout.sizes.sends = 0;
  layout.width = layout.left + layout.plot + kRightColumn;
  return layout;
}

void settle(Layout& layout, int legend_lines) {
  const double pitch = layout.sizes.boxes + layout.sizes.sends + layout.sizes.memory + layout.sizes.gap;
  const double legend = legend_lines * kLegendLine + 12;
  const bool several = layout.panels.size() > 1;
  double y = 8;
  if (several) {
    layout.legend = y + 4;
    y += legend;
  }
  for (PanelLayout& panel : layout.panels) {
    panel.header = y;
    y += panel.panel->timeline.title.empty() ? 6 : kTitle;
    if (!several) {
      layout.legend = y;
      y += legend;
    }
    if (&panel == layout.panels.data()) layout.top = y;
    for (Row& row : panel.rows) {
      row.top = y;
      y += pitch;
    }
    if (several) y += 6;
  }
  layout.bottom = y - layout.sizes.gap;
  layout.height = layout.bottom + kAxis;
}

}  // namespace stagecraft::pictures
