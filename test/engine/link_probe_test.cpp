#include "engine/transport/link_probe.h"

#include "test/support/catch.h"

namespace stagecraft {

TEST_CASE("the local link has a latency and a bandwidth that a machine can have", "[link_probe]") {
  const ProbedLink link = probe_local_link();
  CHECK(link.latency > Seconds{0});
  CHECK(link.latency < Seconds{0.1});
  CHECK(link.bytes_per_second > 1e7);
  CHECK(link.bytes_per_second < 1e13);
  // No two of hundreds of rounds take the same time to the nanosecond.
  CHECK(link.latency_spread > Seconds{0});
  CHECK(link.latency_spread < Seconds{0.1});
  CHECK(link.bytes_per_second_spread > 0);
  CHECK(link.bytes_per_second_spread < 1e13);
}

}  // namespace stagecraft
