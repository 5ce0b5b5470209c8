#include "schedules/pictures/svg_boxes.h"

#include "base/table.h"
#include "schedules/pictures/shares.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

namespace stagecraft::pictures {
namespace {

constexpr double kPointed = 4;           // narrower boxes cannot be pointed at
constexpr std::size_t kAllBoxes = 4000;  // up to so many boxes have a tooltip however narrow
constexpr double kColumn = 3;            // of a dense picture
constexpr double kStretch = 36;          // with one tooltip for its small boxes

class Boxes {
 public:
  Boxes(SvgWriter& svg, const Layout& layout, const PanelLayout& panel)
      : svg_(svg), layout_(layout), panel_(panel) {
    std::size_t boxes = 0;
    for (const Row& row : panel.rows) boxes += row.events.size();
    all_ = boxes <= kAllBoxes;
  }

  void write() {
    for (const Row& row : panel_.rows) {
      small_ = false;
      if (layout_.dense) {
        add_shares(row);
      } else {
        for (const Event* event : row.events) add(row, *event);
      }
      if (small_) add_stretches(row);
    }
    // The first style's area is the smallest and lies on top.
    for (std::size_t i = kLooks; i-- > 0;) {
      if (areas_.at(i).empty()) continue;
      svg_.add("<path fill=\"{}\" d=\"{}\"/>\n", style_of(static_cast<EventStyle>(i)).fill, areas_.at(i));
    }
    for (const auto& [fill, path] : paths_) svg_.add("<path fill=\"{}\" d=\"{}\"/>\n", fill, path);
    if (!stretches_.empty()) svg_.add("<g fill-opacity=\"0\">\n{}</g>\n", stretches_);
    for (const auto& [fill, boxes] : boxes_) svg_.add("<g fill=\"{}\">\n{}</g>\n", fill, boxes);
    for (const auto& [style, texts] : texts_) {
      svg_.add("<g font-size=\"{}\" fill=\"{}\" text-anchor=\"middle\" pointer-events=\"none\">\n{}</g>\n",
               style.first, style.second, texts);
    }
  }

 private:
  void add(const Row& row, const Event& event) {
    const EventStyle event_style = style_of(event);
    const double left = layout_.x(event.begin);
    const double width = layout_.x(event.end) - left;
    double top = row.top;
    double height = layout_.sizes.boxes;
    if (is_sent(event_style)) {
      if (layout_.sizes.sends == 0) return;
      height = layout_.sizes.sends / 2 - 1;
      top += layout_.sizes.boxes + (event.action.tag.payload == Payload::activation ? 1 : height + 2);
      if (event_style == EventStyle::sent_skip) {  // below what goes to a neighbour at the same time
        height /= 2;
        top += height;
      }
    }
    const std::size_t stages = row.stages.size();
    const std::size_t stage = is_compute(event.action.op) ? row.stage_position(event) : 0;
    if (!all_ && width < kPointed) {
      small_ = true;
      const std::string fill =
          is_wait(event_style) ? style_of(event_style).fill : fill_of(event_style, stage, stages);
      paths_[fill] += box_path(left, top, std::max(width, 0.05), height);
      return;
    }
    const double seam =
        width > 3 && !is_sent(event_style) ? 0.7 : 0;  // white between neighbours, where there is room
    boxes_[fill_of(event_style, stage, stages)] +=
        svg("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"{}><title>{}: {} at {}</title></rect>\n", left,
            top, std::max(width - seam, 0.05), height, width > 8 && height > 12 ? " rx=\"2\"" : "",
            escape(event_name(event, stages > 1)), format_duration(event.end - event.begin),
            format_duration(event.begin));
    if (!is_sent(event_style)) inscribe(row, event, left + (width - seam) / 2, width - seam);
  }

  /// The micro-batch's number in a compute box, the cause in a wait, where they fit.
  void inscribe(const Row& row, const Event& event, double middle, double width) {
    const EventStyle event_style = style_of(event);
    const bool computes = is_compute(event.action.op);
    if (event_style == EventStyle::other || (!computes && layout_.sizes.boxes < 20)) return;
    const std::string text =
        computes ? std::to_string(event.action.micro_batch.value) : event_name(event, row.stages.size() > 1);
    for (const double size : {11.0, 9.0, 7.5}) {
      if (size > layout_.sizes.boxes * 0.8 || (!computes && size != 9)) continue;
      if (text_width(text, size) > width - (computes ? 1 : 8)) continue;
      texts_[{size, style_of(event_style).ink}] +=
          svg("<text x=\"{}\" y=\"{}\">{}</text>\n", middle, row.top + layout_.sizes.boxes / 2 + size * 0.36,
              escape(text));
      return;
    }
  }

  /// A dense row: areas on top of each other whose heights are what every style takes of the time.
  void add_shares(const Row& row) {
    small_ = true;
    const auto columns = static_cast<std::size_t>(std::ceil(layout_.plot / kColumn));
    const double width = layout_.plot / static_cast<double>(columns);
    const std::vector<Shares> shares = shares_of(row, layout_.begin, layout_.end, columns);
    std::vector<double> below(columns, 0.0);  // where the looks so far end, as a part of the height
    for (std::size_t i = 0; i < kLooks; ++i) {
      std::string edge;
      double drawn = 0;
      bool there = false;
      for (std::size_t c = 0; c < columns; ++c) {
        below[c] += static_cast<double>(shares[c].at(i));
        there = there || shares[c].at(i) > 0;
        const double height = std::round(std::min(1.0, below[c]) * layout_.sizes.boxes * 2) / 2;
        if (height == drawn) continue;
        edge += svg("H{}V{}", layout_.left + static_cast<double>(c) * width, row.top + height);
        drawn = height;
      }
      if (!there) continue;
      areas_.at(i) +=
          svg("M{} {}{}H{}V{}z", layout_.left, row.top, edge, layout_.left + layout_.plot, row.top);
    }
  }

  /// What stretches of a row are, for those who point at boxes too small to say it themselves.
  void add_stretches(const Row& row) {
    const auto columns = static_cast<std::size_t>(std::ceil(layout_.plot / kStretch));
    const double width = layout_.plot / static_cast<double>(columns);
    const double seconds = (layout_.end - layout_.begin) / static_cast<double>(columns);
    const std::vector<Shares> shares = shares_of(row, layout_.begin, layout_.end, columns);
    for (std::size_t i = 0; i < columns; ++i) {
      const Seconds begin{layout_.begin + static_cast<double>(i) * seconds};
      stretches_ += fmt::format("<path d=\"{}\"><title>{}, {} to {}: {}</title></path>\n",
                                box_path(layout_.x(begin), row.top, width, layout_.sizes.boxes),
                                escape(row.name), format_duration(begin),
                                format_duration(begin + Seconds{seconds}), describe_shares(shares[i]));
    }
  }

  SvgWriter& svg_;
  const Layout& layout_;
  const PanelLayout& panel_;
  bool all_ = true;
  bool small_ = false;                                ///< the row at hand has boxes without tooltips
  std::map<std::string, std::string> paths_, boxes_;  ///< by fill
  std::map<std::pair<double, std::string>, std::string> texts_;  ///< by size and colour
  std::array<std::string, kLooks> areas_;                        ///< of dense rows
  std::string stretches_;
};

}  // namespace

void write_boxes(SvgWriter& svg, const Layout& layout, const PanelLayout& panel) {
  Boxes(svg, layout, panel).write();
}

}  // namespace stagecraft::pictures
