#include "base/describe.h"

#include <fmt/format.h>

#include <cmath>

namespace stagecraft::json {

bool Range::holds(double x) const {
  return (open_min ? x > min : x >= min) && (open_max ? x < max : x <= max);
}

std::string Range::text() const {
  std::string out;
  if (std::isfinite(min)) out = fmt::format("{} {:.15g}", open_min ? "above" : "at least", min);
  if (std::isfinite(max)) {
    out += fmt::format("{}{} {:.15g}", out.empty() ? "" : " and ", open_max ? "below" : "at most", max);
  }
  return out;
}

}  // namespace stagecraft::json
