#include "schedules/base/table.h"
#include "schedules/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

namespace stagecraft {
namespace {

/// How a kind of box looks. Calm fills that stay apart in greyscale too; the text is a dark shade of each.
struct Style {
  const char* label;
  const char* fill;
  const char* text;
};

enum Look : std::size_t {
  forward,
  recompute,
  backward,
  backward_weight,
  step,
  collective,
  wait,
  other,
  activation_sent,
  gradient_sent,
  loss_sent,
  look_count
};

constexpr std::array<Style, look_count> kStyles{{
    {"forward", "#9dc3e6", "#17395c"},
    {"recompute", "#d3e4f4", "#17395c"},
    {"backward", "#a5d3a9", "#1c4a25"},
    {"weight gradient", "#dbe8b8", "#44511a"},
    {"optimizer step", "#f3c877", "#5c4208"},
    {"collective", "#e5a9a3", "#5f221c"},
    {"wait", "url(#stagecraft-wait)", "#666666"},
    {"load, report", "#d8d2c6", "#4d4536"},
    {"activation sent", "#5b8fc2", "#17395c"},
    {"gradient sent", "#62a86c", "#1c4a25"},
    {"loss sent", "#b08bc0", "#45285a"},
}};

Look look_of(const Event& event) {
  switch (event_kind(event)) {
    case EventKind::forward:
      return forward;
    case EventKind::recompute:
      return recompute;
    case EventKind::backward:
    case EventKind::backward_input:
      return backward;
    case EventKind::backward_weight:
      return backward_weight;
    case EventKind::step:
      return step;
    case EventKind::collective:
      return collective;
    case EventKind::wait:
      return wait;
    case EventKind::other:
      return other;
    case EventKind::transfer:
      break;
  }
  switch (event.action.tag.payload) {
    case Payload::activation:
      return activation_sent;
    case Payload::gradient:
      return gradient_sent;
    case Payload::loss:
      return loss_sent;
  }
  return loss_sent;
}

// Sizes in pixels.
constexpr double kRow = 28;       // a rank's boxes
constexpr double kLink = 5;       // one strip of transfers
constexpr double kGap = 10;       // between ranks
constexpr double kMargin = 18;    // around everything
constexpr double kHeader = 62;    // title and legend
constexpr double kAxis = 40;      // ticks and their unit
constexpr double kGlyph = 0.58;   // mean width of a character, in font sizes
constexpr double kMinPlot = 860;  // width of the time axis
constexpr double kMaxPlot = 2600;
constexpr double kForwardBox = 17;  // wanted width of a forward's box: two digits fit
constexpr const char* kFont = "ui-sans-serif, 'Segoe UI', Helvetica, Arial, 'DejaVu Sans', sans-serif";

double text_width(std::string_view text, double size) {
  return static_cast<double>(text.size()) * size * kGlyph;
}

std::string escape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

/// The steps of an axis people can read: 1, 2 or 5 times a power of ten, at least `least`.
double nice_step(double least) {
  const double power = std::pow(10.0, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= least * (1 - 1e-9)) return factor * power;
  }
  return 10 * power;
}

struct Unit {
  const char* name;
  double per_second;
};

Unit unit_of(double span) {
  if (span < 2e-3) return {"µs", 1e6};
  if (span < 10) return {"ms", 1e3};
  return {"s", 1};
}

class Picture {
 public:
  explicit Picture(const Timeline& timeline) : timeline_(timeline), stages_(holds_several_stages(timeline)) {
    measure();
  }

  std::string text() {
    frame();
    header();
    axis();
    rows();
    boxes();
    svg_ += "</svg>\n";
    return std::move(svg_);
  }

 private:
  template <class... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(svg_), format, std::forward<Args>(args)...);
  }

  void measure() {
    rows_ = std::max(timeline_.rank_names.size(), stages_.size());
    std::vector<double> forwards;
    for (const Event& event : timeline_.events) {
      begin_ = std::min(begin_, event.begin.value);
      end_ = std::max(end_, event.end.value);
      const Look look = look_of(event);
      used_.at(look) = used_.at(look) || event.end > event.begin;
      if (look == forward) forwards.push_back((event.end - event.begin).value);
    }
    if (timeline_.events.empty() || end_ <= begin_) {
      begin_ = 0;
      end_ = 1e-3;
    }
    double wanted = kMinPlot;
    if (!forwards.empty()) {
      const auto middle = forwards.begin() + static_cast<std::ptrdiff_t>(forwards.size() / 2);
      std::nth_element(forwards.begin(), middle, forwards.end());
      if (*middle > 0) wanted = kForwardBox * (end_ - begin_) / *middle;
    }
    plot_ = std::clamp(wanted, kMinPlot, kMaxPlot);
    double label = 0;
    for (const std::string& name : timeline_.rank_names) label = std::max(label, text_width(name, 12));
    left_ = kMargin + std::max(label, text_width("rank 0", 12)) + 12;
    const bool links = used_[activation_sent] || used_[gradient_sent] || used_[loss_sent];
    pitch_ = kRow + kGap + (links ? 2 * kLink + 3 : 0);
    bottom_ = kHeader + static_cast<double>(rows_) * pitch_;
    width_ = left_ + plot_ + kMargin + 14;
  }

  [[nodiscard]] double x(double seconds) const {
    return left_ + (seconds - begin_) / (end_ - begin_) * plot_;
  }
  [[nodiscard]] double y(std::size_t row) const { return kHeader + static_cast<double>(row) * pitch_; }

  void frame() {
    const double height = bottom_ + kAxis;
    add("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 "
        "{0:.0f} "
        "{1:.0f}\" font-family=\"{2}\">\n",
        width_, height, kFont);
    add("<defs><pattern id=\"stagecraft-wait\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" "
        "patternTransform=\"rotate(45)\"><rect width=\"6\" height=\"6\" fill=\"#efefef\"/><rect "
        "width=\"1.6\" "
        "height=\"6\" fill=\"#e0e0e0\"/></pattern></defs>\n");
    add("<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n");
  }

  void header() {
    add("<text x=\"{:.1f}\" y=\"24\" font-size=\"15\" font-weight=\"600\" fill=\"#222222\">{}</text>\n",
        kMargin, escape(timeline_.title));
    double at = left_;
    const auto entry = [&](const char* label, const char* fill, const char* stroke) {
      add("<rect x=\"{:.1f}\" y=\"36\" width=\"14\" height=\"11\" rx=\"2\" fill=\"{}\" stroke=\"{}\"/>", at,
          fill, stroke);
      add("<text x=\"{:.1f}\" y=\"45.5\" font-size=\"11\" fill=\"#555555\">{}</text>\n", at + 19, label);
      at += 19 + text_width(label, 10) + 16;
    };
    for (std::size_t i = 0; i < look_count; ++i) {
      if (used_.at(i)) entry(kStyles.at(i).label, kStyles.at(i).fill, "none");
    }
    entry("idle", "#fafafa", "#d8d8d8");
  }

  void axis() {
    const Unit unit = unit_of(end_ - begin_);
    const double step = nice_step((end_ - begin_) * unit.per_second * 78 / plot_);
    const double first = std::ceil(begin_ * unit.per_second / step - 1e-9);
    add("<g stroke=\"#e9e9e9\">\n");
    for (double k = first; k * step <= end_ * unit.per_second * (1 + 1e-9); ++k) {
      add("<path d=\"M{0:.2f} {1:.1f}V{2:.1f}\"/>", x(k * step / unit.per_second), kHeader - 6, bottom_ + 4);
    }
    add("</g>\n<g font-size=\"11\" fill=\"#666666\" text-anchor=\"middle\">\n");
    for (double k = first; k * step <= end_ * unit.per_second * (1 + 1e-9); ++k) {
      const double value = k == 0 ? 0 : k * step;
      add("<text x=\"{:.2f}\" y=\"{:.1f}\">{:.10g}{}</text>", x(value / unit.per_second), bottom_ + 18, value,
          k == first ? fmt::format(" {}", unit.name) : "");
    }
    add("</g>\n");
  }

  void rows() {
    add("<g fill=\"#fafafa\" stroke=\"#e4e4e4\" stroke-width=\".8\">\n");
    for (std::size_t r = 0; r < rows_; ++r) {
      add("<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{}\"/>", left_, y(r), plot_, kRow);
    }
    add("</g>\n<g font-size=\"12\" fill=\"#333333\" text-anchor=\"end\">\n");
    for (std::size_t r = 0; r < rows_; ++r) {
      const std::string name =
          r < timeline_.rank_names.size() ? timeline_.rank_names[r] : fmt::format("rank {}", r);
      add("<text x=\"{:.1f}\" y=\"{:.1f}\">{}</text>", left_ - 10, y(r) + kRow / 2 + 4, escape(name));
    }
    add("</g>\n");
  }

  void boxes() {
    // One group a look: the colour stands once, and the file stays small.
    for (std::size_t i = 0; i < look_count; ++i) {
      if (!used_.at(i)) continue;
      add("<g fill=\"{}\">\n", kStyles.at(i).fill);
      for (const Event& event : timeline_.events) {
        if (look_of(event) == i && event.end > event.begin && event.rank.valid()) box(event, Look(i));
      }
      add("</g>\n");
    }
    add("<g text-anchor=\"middle\" pointer-events=\"none\">\n");
    for (const Event& event : timeline_.events) {
      if (event.rank.valid()) inscribe(event);
    }
    add("</g>\n");
  }

  void box(const Event& event, Look look) {
    const double from = x(event.begin.value);
    const double wide = x(event.end.value) - from;
    double top = y(event.rank.index());
    double high = kRow;
    if (event_kind(event) == EventKind::transfer) {
      top += kRow + 2 + (look == activation_sent ? 0 : kLink + 1);
      high = kLink;
    }
    const double seam = wide > 3 ? 0.7 : 0;  // white between neighbours, where there is room for it
    add("<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{}\"{}><title>{} · {} at "
        "{}</title></rect>\n",
        from, top, std::max(wide - seam, 0.05), high, wide > 8 && high > 8 ? " rx=\"2\"" : "",
        escape(event_name(event, stages_[event.rank.index()])), format_duration(event.end - event.begin),
        format_duration(event.begin));
  }

  /// The micro-batch's number in a compute box, the cause in a wait, where they fit.
  void inscribe(const Event& event) {
    const EventKind kind = event_kind(event);
    if (kind == EventKind::transfer || kind == EventKind::other) return;
    const double from = x(event.begin.value);
    const double wide = x(event.end.value) - from;
    const bool computes = is_compute(event.action.op);
    std::string text = event_name(event, stages_[event.rank.index()]);
    if (computes) text = std::to_string(event.action.micro_batch.value);
    for (const double size : {11.0, 9.0}) {
      if (kind == EventKind::wait && size > 9.5) continue;
      if (text_width(text, size) > wide - (computes ? 1.5 : 8)) continue;
      add("<text x=\"{:.2f}\" y=\"{:.1f}\" font-size=\"{}\" fill=\"{}\">{}</text>\n", from + wide / 2,
          y(event.rank.index()) + kRow / 2 + size * 0.36, size, kStyles.at(look_of(event)).text,
          escape(text));
      return;
    }
  }

  const Timeline& timeline_;
  std::vector<bool> stages_;  // per rank: its names need the stage
  std::array<bool, look_count> used_{};
  std::size_t rows_ = 0;
  double begin_ = 0, end_ = 0;
  double left_ = 0, plot_ = 0, pitch_ = 0, bottom_ = 0, width_ = 0;
  std::string svg_;
};

}  // namespace

std::string to_svg(const Timeline& timeline) { return Picture(timeline).text(); }

}  // namespace stagecraft
