#include "engine/transport/link_probe.h"

#include "base/error.h"
#include "base/statistics.h"
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

/// One-way times of a message, in seconds: the lower quartile, the median and the upper quartile.
using Quartiles = std::array<double, 3>;

/// Of messages between this rank and its peer, the first of which `begins`.
Quartiles one_way(Transport& transport, at::Device device, Rank peer, bool begins, std::int64_t bytes,
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
  std::vector<double> times;
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
    const double round_trip = std::chrono::duration<double>(Clock::now() - begin).count();
    if (round >= 0) times.push_back(round_trip / 2);
  }
  return {quantile(times, 0.25), quantile(times, 0.5), quantile(times, 0.75)};
}

ProbedLink link_of(const Quartiles& small, const Quartiles& large) {
  const double latency = small[1];
  // On a busy machine the small messages may have been as slow as the large one: at most half of that one's
  // time is taken for latency.
  const auto bandwidth = [&](double of_large) {
    return static_cast<double>(kLarge - kSmall) / std::max(of_large - latency, of_large / 2);
  };
  return {{Seconds{latency}, bandwidth(large[1])},
          Seconds{small[2] - small[0]},
          bandwidth(large[0]) - bandwidth(large[2])};
}

}  // namespace

std::vector<ProbedLink> probe_links(Transport& transport, c10::Device device,
                                    const std::vector<RankPair>& pairs) {
  const c10::DeviceGuard on_device(device);
  transport.barrier();
  Quartiles small{}, large{};
  for (const auto& [first, second] : pairs) {
    STAGECRAFT_CHECK(first != second && first.value < transport.world() && second.value < transport.world(),
                     "a link needs two ranks");
    const bool begins = transport.rank() == first;
    if (!begins && transport.rank() != second) continue;
    const Rank peer = begins ? second : first;
    small = one_way(transport, device, peer, begins, kSmall, kSmallRounds);
    large = one_way(transport, device, peer, begins, kLarge, kLargeRounds);
  }
  const std::vector<std::vector<double>> all =
      transport.all_gather({small[0], small[1], small[2], large[0], large[1], large[2]});
  std::vector<ProbedLink> links;
  for (const auto& [first, second] : pairs) {
    const std::vector<double>& its = all[first.index()];
    links.push_back(link_of({its[0], its[1], its[2]}, {its[3], its[4], its[5]}));
  }
  return links;
}

ProbedLink probe_link(Transport& transport, c10::Device device) {
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

ProbedLink probe_local_link(const std::array<c10::Device, 2>& devices, const OfDevice& of_device) {
  LocalRanks ranks = make_local_ranks(2, TransportOptions{Seconds{60}, false});
  const auto probe = [&](std::size_t rank) {
    const c10::DeviceGuard on_device(devices[rank]);
    std::unique_ptr<Transport> transport = std::move(ranks.transports[rank]);
    if (of_device) transport = of_device(std::move(transport), devices[rank]);
    const ProbedLink link = probe_link(*transport, devices[rank]);
    transport->barrier();
    return link;
  };
  ProbedLink link;
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
