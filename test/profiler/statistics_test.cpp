#include "profiler/statistics.h"

#include "test/support/catch.h"

namespace stagecraft {

TEST_CASE("median and interquartile range", "[statistics]") {
  CHECK(timing_of({}).median == Seconds{0});
  CHECK(timing_of({Seconds{3}}).median == Seconds{3});
  CHECK(timing_of({Seconds{3}}).spread == Seconds{0});
  const Timing timing = timing_of({Seconds{5}, Seconds{1}, Seconds{2}, Seconds{4}, Seconds{300}});
  CHECK(timing.median == Seconds{4});
  CHECK(timing.spread == Seconds{3});  // 2 to 5: one outlier moves neither
  CHECK(timing_of({Seconds{1}, Seconds{2}}).median.value == Approx(1.5));
}

}  // namespace stagecraft
