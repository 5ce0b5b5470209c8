#include "engine/run/resolve/measured_cluster.h"

#include "base/error.h"
#include "base/machine_memory.h"
#include "base/text.h"
#include "engine/run/resolve/device_reserve.h"
#include "engine/run/resolve/devices.h"
#include "engine/run/resolve/run_transport.h"
#include "engine/transport/cores.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <vector>

namespace stagecraft {
namespace {

/// Two pairs at once over one wire have half of it each.
constexpr double kShared = 0.7;

/// For each of the ranks that share a device, or a machine's memory.
std::optional<Bytes> memory_of_rank(at::Device device, int sharing) {
  if (!device.is_cpu()) return Bytes{device_memory(device.index()).total.value / sharing};
  const std::optional<MemoryLimit> limit = tightest(memory_limits());
  return limit ? std::optional(Bytes{limit->total.value / sharing}) : std::nullopt;
}

void give_memory(Cluster& cluster, const RunConfig& config, const TrainingInputs& inputs, at::Device device,
                 std::optional<Bytes> each) {
  if (!each) return;
  if (device.is_cpu()) {
    cluster.memory = each;
  } else {
    cap_at_card(cluster, config, inputs.model, *each, 1);
  }
}

}  // namespace

int ranks_per_machine(const std::vector<RankSeat>& seats) {
  const int each = seats.front().machine_ranks;
  for (std::size_t rank = 0; rank < seats.size(); ++rank) {
    const RankSeat& seat = seats[rank];
    if (seat.machine_ranks != each) {
      throw InputError(
          fmt::format("--cluster-file: a cluster file has as many ranks on each machine, and rank {}'s "
                      "machine has {} where "
                      "the first one has {}: start as many on each (mpirun --map-by ppr:{}:node, srun "
                      "--ntasks-per-node={})",
                      rank, seat.machine_ranks, each, std::min(each, seat.machine_ranks),
                      std::min(each, seat.machine_ranks)));
    }
    if (seat.on_machine != static_cast<int>(rank) % each) {
      throw InputError(fmt::format(
          "--cluster-file: a cluster file has the ranks of one machine after those of the other, and rank {} "
          "is "
          "number {} on its machine: start them so (mpirun --map-by slot, srun --distribution=block)",
          rank, seat.on_machine));
    }
  }
  return each;
}

Cluster measured_cluster(const RunConfig& config, const TrainingInputs& inputs, const LaunchInfo& launch,
                         Transport& hosts, at::Device device) {
  std::vector<RankSeat> seats;
  for (const std::vector<double>& seat : hosts.all_gather(
           {static_cast<double>(launch.machine_rank), static_cast<double>(launch.machine_world)})) {
    seats.push_back({static_cast<int>(seat[0]), static_cast<int>(seat[1])});
  }
  const int each = ranks_per_machine(seats);
  const int machines = hosts.world() / each;
  Cluster cluster;
  cluster.name = fmt::format("{} x {} ranks on {}, as measured", machines, each, device_name(device));
  const auto measured = [&](const std::vector<RankPair>& pairs) {
    return measured_links(config, hosts, device, pairs).links;
  };
  if (each > 1 || machines == 1) {
    NetworkLevel& level = cluster.levels.emplace_back();
    level.count = each;
    if (each > 1) level.link = measured({{Rank{0}, Rank{1}}}).front();
  }
  if (machines > 1) {
    NetworkLevel& level = cluster.levels.emplace_back();
    level.count = machines;
    level.link = measured({{Rank{0}, Rank{each}}}).front();
    if (each > 1) {
      const auto both = measured({{Rank{0}, Rank{each}}, {Rank{1}, Rank{each + 1}}});
      const double slower = std::min(both[0].bytes_per_second, both[1].bytes_per_second);
      if (slower < kShared * level.link.bytes_per_second) level.shared_by = SharedBy::child;
    }
  }
  const int sharing = device.is_cpu() ? launch.machine_world : ranks_on_card(device, launch.machine_world);
  const double mine = static_cast<double>(memory_of_rank(device, sharing).value_or(Bytes{}).value);
  double least = mine;
  for (const std::vector<double>& its : hosts.all_gather({mine})) least = std::min(least, its[0]);
  give_memory(cluster, config, inputs, device,
              least > 0 ? std::optional(Bytes{static_cast<std::int64_t>(least)}) : std::nullopt);
  return cluster;
}

Cluster measured_cluster(const RunConfig& config, const TrainingInputs& inputs, int threads,
                         const Link& link) {
  const auto cards = static_cast<int>(accelerators().devices.size());
  const at::Device device = device_of(config, 0);
  const int ranks = device.is_cpu() ? std::max(1, transport::count_cores().usable / threads) : cards;
  Cluster cluster = flat_cluster(
      fmt::format("{} on {}, as measured", plural(ranks, "rank"), device_name(device)), ranks, link);
  give_memory(cluster, config, inputs, device, memory_of_rank(device, device.is_cpu() ? ranks : 1));
  return cluster;
}

}  // namespace stagecraft
