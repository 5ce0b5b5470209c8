#include "schedules/pictures/axis.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace stagecraft::pictures {
namespace {

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

}  // namespace

Axis axis_of(double begin, double end, double most) {
  const Unit unit = unit_of(end - begin);
  // Far from zero the moments that a double can tell apart are farther apart than ticks would be.
  const double told_apart = std::max(std::abs(begin), std::abs(end)) * 0x1p-50;
  const double step = nice_step(std::max((end - begin) / most, told_apart) * unit.per_second);
  const double first = std::ceil(begin * unit.per_second / step - 1e-9);
  const double last = std::floor(end * unit.per_second / step + 1e-9);
  const int digits = std::max(10, 2 + static_cast<int>(std::log10(1 + std::abs(first) + std::abs(last))));
  Axis axis;
  for (double k = first; k <= last; ++k) {  // below 2^53 each number has a next one
    const double value = k == 0 ? 0 : k * step;
    axis.ticks.push_back(Seconds{value / unit.per_second});
    axis.labels.push_back(
        fmt::format("{:.{}g}{}{}", value, digits, k == first ? " " : "", k == first ? unit.name : ""));
  }
  return axis;
}

}  // namespace stagecraft::pictures
