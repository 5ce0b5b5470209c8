#include "engine/transport/link_probe.h"

#include "base/error.h"
#include "engine/transport/factory.h"

#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <thread>
#include <utility>

namespace stagecraft {

namespace {

constexpr std::int64_t kSmall = 4;
constexpr std::int64_t kLarge = 4 << 20;  // past eager limits and caches, as boundaries are
constexpr int kSmallRounds = 200;
constexpr int kLargeRounds = 20;

using Clock = std::chrono::steady_clock;

/// One-way time of a message, as rank 0 sees it; elsewhere 0.
Seconds one_way(Transport& transport, at::Device device, std::int64_t bytes, int rounds) {
  const std::int32_t me = transport.rank().value;
  if (me > 1) return {};
  const Rank peer{1 - me};
  const auto bytes_there = at::TensorOptions(device).dtype(at::kByte);
  const at::Tensor out = at::zeros({bytes}, bytes_there);
  const at::Tensor in = at::zeros({bytes}, bytes_there);
  // Waiting for a device's receive puts it before what the device computes next: the host goes on at once.
  const auto finish = [&](Request& request) {
    while (!device.is_cpu() && !transport.test(request)) transport.progress();
    transport.wait(request);
  };
  std::vector<Seconds> times;
  for (int round = -rounds / 10; round < rounds; ++round) {  // the first tenth warms up
    const Tag to{Payload::activation, StageId{me}, StageId{peer.value}, 0};
    const Tag from{Payload::activation, StageId{peer.value}, StageId{me}, 0};
    const auto receive = [&] {
      const RequestPtr request = transport.post_receive(peer, from, in);
      finish(*request);
    };
    const auto send = [&] {
      const RequestPtr request = transport.start_send(peer, to, out);
      finish(*request);
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

Link probe_link(Transport& transport, c10::Device device) {
  STAGECRAFT_CHECK(transport.world() >= 2, "a link needs two ranks");
  const c10::DeviceGuard on_device(device);
  transport.barrier();
  const Seconds small = one_way(transport, device, kSmall, kSmallRounds);
  const Seconds large = one_way(transport, device, kLarge, kLargeRounds);
  const std::vector<std::vector<double>> all = transport.all_gather({small.value, large.value});
  const double latency = all[0][0];
  // On a busy machine the small messages may have been as slow as the large one: at most half of that one's
  // time is taken for latency.
  const double longer = std::max(all[0][1] - latency, all[0][1] / 2);
  return {Seconds{latency}, static_cast<double>(kLarge - kSmall) / longer};
}

transport::NcclWiring probe_wiring() {
  const TransportRules rules = TransportRules::nccl();
  const auto line = [&](std::int32_t from, std::int32_t to) {
    return transport::channel_of(rules, Rank{from}, Rank{to},
                                 {Payload::activation, StageId{from}, StageId{to}, 0});
  };
  return {.rules = rules, .channels = {line(0, 1), line(1, 0)}, .groups = {}};
}

Link probe_local_link(const std::array<c10::Device, 2>& devices, const OfDevice& of_device) {
  LocalRanks ranks = make_local_ranks(2, TransportOptions{Seconds{60}, false});
  const auto probe = [&](std::size_t rank) {
    const c10::DeviceGuard on_device(devices[rank]);
    std::unique_ptr<Transport> transport = std::move(ranks.transports[rank]);
    if (of_device) transport = of_device(std::move(transport), devices[rank]);
    const Link link = probe_link(*transport, devices[rank]);
    transport->barrier();
    return link;
  };
  Link link;
  std::exception_ptr error;
  {
    const std::jthread other([&] {
      try {
        (void)probe(1);
      } catch (const std::exception& failure) {
        ranks.fail(Rank{1}, failure.what());
      }
    });
    try {
      link = probe(0);
    } catch (const std::exception& failure) {
      error = std::current_exception();
      ranks.fail(Rank{0}, failure.what());
    }
  }
  if (error) std::rethrow_exception(error);
  return link;
}

}  // namespace stagecraft
