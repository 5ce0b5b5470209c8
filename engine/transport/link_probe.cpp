#include "stagecraft/engine/transport/link_probe.h"

#include "stagecraft/base/error.h"
#include "stagecraft/engine/transport/factory.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <thread>

namespace stagecraft {

namespace {

constexpr std::int64_t kSmall = 4;
constexpr std::int64_t kLarge = 4 << 20;  // past eager limits and caches, as boundaries are
constexpr int kSmallRounds = 200;
constexpr int kLargeRounds = 20;

using Clock = std::chrono::steady_clock;

/// One-way time of a message, as rank 0 sees it; elsewhere 0.
Seconds one_way(Transport& transport, std::int64_t bytes, int rounds) {
  const std::int32_t me = transport.rank().value;
  if (me > 1) return {};
  const Rank peer{1 - me};
  const at::Tensor out = at::zeros({bytes}, at::kByte);
  const at::Tensor in = at::zeros({bytes}, at::kByte);
  std::vector<Seconds> times;
  for (int round = -rounds / 10; round < rounds; ++round) {  // the first tenth warms up
    const Tag to{Payload::activation, StageId{me}, StageId{peer.value}, 0};
    const Tag from{Payload::activation, StageId{peer.value}, StageId{me}, 0};
    const auto receive = [&] {
      const RequestPtr request = transport.post_receive(peer, from, in);
      transport.wait(*request);
    };
    const auto send = [&] {
      const RequestPtr request = transport.start_send(peer, to, out);
      transport.wait(*request);
    };
    const Clock::time_point begin = Clock::now();
    if (me == 0) {
      send();
      receive();
    } else {
      receive();
      send();
    }
    const Seconds round_trip{std::chrono::duration<double>(Clock::now() - begin).count()};
    if (round >= 0) times.push_back(round_trip / 2);
  }
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

}  // namespace

Link probe_link(Transport& transport) {
  STAGECRAFT_CHECK(transport.world() >= 2, "a link needs two ranks");
  transport.barrier();
  const Seconds small = one_way(transport, kSmall, kSmallRounds);
  const Seconds large = one_way(transport, kLarge, kLargeRounds);
  const std::vector<std::vector<double>> all = transport.all_gather({small.value, large.value});
  const double latency = all[0][0];
  // On a busy machine the small messages may have been as slow as the large one: at most half of that one's
  // time is taken for latency.
  const double longer = std::max(all[0][1] - latency, all[0][1] / 2);
  return {Seconds{latency}, static_cast<double>(kLarge - kSmall) / longer};
}

Link probe_local_link() {
  auto transports = make_local_transports(2, TransportOptions{Seconds{60}, false});
  Link link;
  std::exception_ptr error;
  {
    const std::jthread other([&] {
      try {
        (void)probe_link(*transports[1]);
      } catch (const std::exception& failure) {
        transports[1]->fail(failure.what());
      }
    });
    try {
      link = probe_link(*transports[0]);
    } catch (const std::exception& failure) {
      error = std::current_exception();
      transports[0]->fail(failure.what());
    }
  }
  if (error) std::rethrow_exception(error);
  return link;
}

}  // namespace stagecraft
