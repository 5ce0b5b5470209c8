#pragma once

#include <rapidcheck.h>

namespace stagecraft::test {

/// A multiple of 1/16 up to most / 16, so that sums of times are exact.
inline double draw_sixteenths(int most) { return *rc::gen::inRange(0, most + 1) / 16.0; }

}  // namespace stagecraft::test
