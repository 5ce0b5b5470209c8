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

/// One-way time of a message between this rank and its peer, the first of which `begins`.
Seconds one_way(Transport& transport, at::Device device, Rank peer, bool begins, std::int64_t bytes,
                int rounds) {
  const std::int32_t me = transport.rank().value;
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
    if (begins) {
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

std::vector<Link> probe_links(Transport& transport, c10::Device device, const std::vector<RankPair>& pairs) {
  const c10::DeviceGuard on_device(device);
  transport.barrier();
  Seconds small, large;
  for (const auto& [first, second] : pairs) {
    STAGECRAFT_CHECK(first != second && first.value < transport.world() && second.value < transport.world(),
                     "a link needs two ranks");
    const bool begins = transport.rank() == first;
    if (!begins && transport.rank() != second) continue;
    const Rank peer = begins ? second : first;
    small = one_way(transport, device, peer, begins, kSmall, kSmallRounds);
    large = one_way(transport, device, peer, begins, kLarge, kLargeRounds);
  }
  const std::vector<std::vector<double>> all = transport.all_gather({small.value, large.value});
  std::vector<Link> links;
  for (const auto& [first, second] : pairs) {
    const double latency = all[first.index()][0], of_large = all[first.index()][1];
    // On a busy machine the small messages may have been as slow as the large one: at most half of that one's
    // time is taken for latency.
    const double longer = std::max(of_large - latency, of_large / 2);
    links.push_back({Seconds{latency}, static_cast<double>(kLarge - kSmall) / longer});
  }
  return links;
}

Link probe_link(Transport& transport, c10::Device device) {
  return probe_links(transport, device, {{Rank{0}, Rank{1}}}).front();
}

transport::NcclWiring probe_wiring(const std::vector<RankPair>& pairs) {
  transport::NcclWiring wiring{.rules = TransportRules::nccl(), .channels = {}, .groups = {}};
  const auto line = [&](Rank from, Rank to) {
    wiring.channels.push_back(transport::channel_of(
        wiring.rules, from, to, {Payload::activation, StageId{from.value}, StageId{to.value}, 0}));
  };
  for (const auto& [first, second] : pairs) {
    line(first, second);
    line(second, first);
  }
  return wiring;
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
