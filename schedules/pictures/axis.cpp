#include "schedules/pictures/axis.h"

#include <fmt/format.h>

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
  const double step = nice_step((end - begin) * unit.per_second / most);
  const double first = std::ceil(begin * unit.per_second / step - 1e-9);
  Axis axis;
  for (double k = first; k * step <= end * unit.per_second * (1 + 1e-9); ++k) {
    const double value = k == 0 ? 0 : k * step;
    axis.ticks.push_back(Seconds{value / unit.per_second});
    axis.labels.push_back(
        fmt::format("{:.10g}{}{}", value, k == first ? " " : "", k == first ? unit.name : ""));
  }
  return axis;
}

}  // namespace stagecraft::pictures
