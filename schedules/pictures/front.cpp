#include "schedules/pictures/front.h"

#include "base/error.h"
#include "base/table.h"
#include "schedules/pictures/axis.h"
#include "schedules/pictures/svg_writer.h"

#include <algorithm>
#include <cmath>

namespace stagecraft {
namespace pictures {
namespace {

constexpr double kLeft = 70, kTop = 48, kWidth = 760, kHeight = 420, kRight = 40, kBottom = 60;
constexpr double kLabelSize = 11;

class FrontDrawing {
 public:
  FrontDrawing(const std::vector<FrontPoint>& points, std::optional<Bytes> capacity) : capacity_(capacity) {
    for (const FrontPoint& point : points) (point.on_front ? front_ : others_).push_back(point);
    std::ranges::sort(front_, {}, &FrontPoint::memory);
    frame_front();
  }

  std::string text(const std::string& title) {
    svg_.open(kLeft + kWidth + kRight, kTop + kHeight + kBottom);
    svg_.label(kLeft, 26, 14, title, "fill=\"#222222\" font-weight=\"600\"");
    time_axis();
    memory_axis();
    limit();
    std::size_t outside = 0;
    for (const FrontPoint& point : others_) {
      if (inside(point)) {
        dot(point, 3, "#b7bcc4");
      } else {
        ++outside;
      }
    }
    if (outside > 0) {
      svg_.label(kLeft, kTop + kHeight + 40, kLabelSize,
                 fmt::format("{} plans are worse than the picture shows", outside), "fill=\"#666666\"");
    }
    line();
    labels();
    return svg_.close();
  }

 private:
  [[nodiscard]] double x(double bytes) const { return kLeft + kWidth * bytes / most_bytes_; }
  [[nodiscard]] double y(double seconds) const {
    return kTop + kHeight * (1 - (seconds - least_time_) / (most_time_ - least_time_));
  }
  [[nodiscard]] double x(const FrontPoint& p) const { return x(static_cast<double>(p.memory.value)); }
  [[nodiscard]] double y(const FrontPoint& p) const { return y(p.time.value); }

  /// The front is what is looked for: it gets most of the picture, whatever else there is.
  void frame_front() {
    const double fastest = front_.back().time.value, slowest = front_.front().time.value;
    const double margin = std::max(0.25 * (slowest - fastest), 0.05 * slowest);
    least_time_ = std::max(0.0, fastest - margin);
    most_time_ = slowest > 0 ? slowest + 2 * margin : 1;
    most_bytes_ = 1.3 * std::max(1.0, static_cast<double>(front_.back().memory.value));
  }
  [[nodiscard]] bool inside(const FrontPoint& point) const {
    return point.time.value <= most_time_ && static_cast<double>(point.memory.value) <= most_bytes_;
  }

  void time_axis() {
    const Axis axis = axis_of(least_time_, most_time_, kHeight / 60);
    for (std::size_t i = 0; i < axis.ticks.size(); ++i) {
      const double at = y(axis.ticks[i].value);
      svg_.add("<path stroke=\"#e6e6e6\" d=\"M{} {}H{}\"/>\n", kLeft, at, kLeft + kWidth);
      svg_.label(kLeft - 8, at + 4, kLabelSize, axis.labels[i], "fill=\"#666666\" text-anchor=\"end\"");
    }
    svg_.label(kLeft - 8, kTop - 10, kLabelSize, "step", "fill=\"#666666\" text-anchor=\"end\"");
  }

  void memory_axis() {
    // Round numbers of the unit that people read: powers of two, in the largest unit that leaves a number.
    double step = 1;
    while (most_bytes_ / step > 10) step *= 2;
    for (double bytes = 0; bytes <= most_bytes_; bytes += step) {
      svg_.add("<path stroke=\"#e6e6e6\" d=\"M{} {}V{}\"/>\n", x(bytes), kTop, kTop + kHeight);
      double unit = 1;
      while (bytes / unit >= 1024) unit *= 1024;
      if (std::fmod(10 * bytes / unit, 1) != 0) continue;  // a figure of one digit would say something else
      svg_.label(x(bytes), kTop + kHeight + 18, kLabelSize,
                 format_bytes(Bytes{static_cast<std::int64_t>(bytes)}),
                 "fill=\"#666666\" text-anchor=\"middle\"");
    }
    svg_.label(kLeft + kWidth, kTop + kHeight + 40, kLabelSize, "memory of the rank that needs most",
               "fill=\"#666666\" text-anchor=\"end\"");
  }

  void limit() {
    if (!capacity_ || static_cast<double>(capacity_->value) > most_bytes_) return;
    const double at = x(static_cast<double>(capacity_->value));
    svg_.add("<path stroke=\"#c0392b\" stroke-dasharray=\"5 4\" d=\"M{} {}V{}\"/>\n", at, kTop,
             kTop + kHeight);
    svg_.label(at - 4, kTop + 12, kLabelSize, "a device has " + format_bytes(*capacity_),
               "fill=\"#c0392b\" text-anchor=\"end\"");
  }

  void dot(const FrontPoint& point, double radius, const char* fill) {
    svg_.add("<circle cx=\"{}\" cy=\"{}\" r=\"{}\" fill=\"{}\"><title>{}: {}, {}</title></circle>\n",
             x(point), y(point), radius, fill, escape(point.label), format_duration(point.time),
             format_bytes(point.memory));
  }

  /// With so much memory this is the best there is: level until the next point, then down.
  void line() {
    if (front_.empty()) return;
    svg_.add("<path fill=\"none\" stroke=\"#1b6aae\" stroke-width=\"1.5\" d=\"M{} {}", x(front_[0]), kTop);
    for (const FrontPoint& point : front_) svg_.add("H{}V{}", x(point), y(point));
    svg_.add("H{}\"/>\n", kLeft + kWidth);
    for (const FrontPoint& point : front_) dot(point, 4.5, "#1b6aae");
  }

  /// Beside their points, above the line; one that would cover another is left to its tooltip.
  void labels() {
    struct Box {
      double left, right, top, bottom;
    };
    std::vector<Box> taken;
    for (const FrontPoint& point : front_) {
      const double width = text_width(point.label, kLabelSize);
      const bool fits = x(point) + 8 + width < kLeft + kWidth + kRight;
      const double left = fits ? x(point) + 8 : x(point) - 8 - width;
      const double base = y(point) - 7;
      const Box box{left, left + width, base - kLabelSize, base + 3};
      const bool covers = std::any_of(taken.begin(), taken.end(), [&](const Box& other) {
        return box.left < other.right && other.left < box.right && box.top < other.bottom &&
               other.top < box.bottom;
      });
      if (covers) continue;
      taken.push_back(box);
      svg_.label(left, base, kLabelSize, point.label,
                 "fill=\"#222222\" stroke=\"#ffffff\" stroke-width=\"3\" paint-order=\"stroke\"");
    }
  }

  std::vector<FrontPoint> front_, others_;
  std::optional<Bytes> capacity_;
  double least_time_ = 0, most_time_ = 0, most_bytes_ = 0;
  SvgWriter svg_;
};

}  // namespace
}  // namespace pictures

std::string front_svg(const std::string& title, const std::vector<FrontPoint>& points,
                      std::optional<Bytes> capacity) {
  STAGECRAFT_CHECK(std::ranges::any_of(points, &FrontPoint::on_front), "there is a front to draw");
  return pictures::FrontDrawing(points, capacity).text(title);
}

}  // namespace stagecraft
