#include "schedules/simulator/prices.h"

#include "base/error.h"
#include "schedules/costs/collectives.h"
#include "schedules/costs/traffic.h"
#include "schedules/rules/reductions.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace stagecraft::simulator {
namespace {

double collective_seconds(const CostTable& costs, const Collective& collective,
                          const std::vector<Rank>& members) {
  if (collective.op == Op::agree_norm) return agreement_time(costs.network, members).value;
  if (collective.op == Op::tie)
    return all_reduce(costs.network, members, costs.tied(collective.tie)).time().value;
  // Tied weights too, whose own sums go over the same links at the same time.
  const Bytes parameters = costs.stages[collective.stage.index()].parameters;
  return all_reduce(costs.network, members, parameters).time().value;
}

std::vector<Rank> whole_members(const Collective& collective, const PartOf& part_of) {
  if (collective.op == Op::tie) return members_of(part_of.whole, collective.holders);
  return members_of(part_of.whole, collective.op, collective.stage);
}

/// The ranks that a route is between, of the program or of what it is a part of.
std::pair<Rank, Rank> ends_of(const Route& route, const PartOf* part_of) {
  if (part_of == nullptr) return {route.sender, route.receiver};
  const Rank sender = part_of->ranks[route.sender.index()];
  // Another pipeline's loss goes elsewhere, beside its gradients: here it takes no time.
  if (route.payload == Payload::loss) return {sender, sender};
  return {sender, part_of->ranks[route.receiver.index()]};
}

}  // namespace

void Prices::set(const Instructions& code, const CostTable& costs, Links links, std::size_t stages,
                 std::size_t ranks, const PartOf* part_of) {
  STAGECRAFT_CHECK(costs.stages.size() == stages,
                   fmt::format("a cost table of {} stages for a program of {}", costs.stages.size(), stages));
  STAGECRAFT_CHECK(costs.speed.empty() || costs.speed.size() >= ranks,
                   fmt::format("{} speeds for {} ranks", costs.speed.size(), ranks));
  compute.resize(code.stage_replicas.size() * part_count);
  route.resize(code.routes.size());
  collective.resize(code.collectives.size());
  for (std::size_t i = 0; i < code.stage_replicas.size(); ++i) {
    const StageReplica& stage_replica = code.stage_replicas[i];
    const StageCosts& stage = costs.stages[stage_replica.stage.index()];
    const double speed =
        costs.speed_of(part_of == nullptr ? stage_replica.rank : part_of->ranks[stage_replica.rank.index()]);
    const auto seconds = by_part(stage, stage.backward_input + stage.backward_weight);
    for (std::size_t p = 0; p < part_count; ++p) compute[i * part_count + p] = seconds[p].value / speed;
  }
  if (links == Links::free) {
    std::fill(route.begin(), route.end(), 0.0);
    std::fill(collective.begin(), collective.end(), 0.0);
    shared_link_count = 0;  // nothing takes time, so nothing queues
    return;
  }
  for (std::size_t i = 0; i < code.routes.size(); ++i) {
    const Route& r = code.routes[i];
    const auto [sender, receiver] = ends_of(r, part_of);
    route[i] = sender == receiver ? 0
                                  : costs.network.between(sender, receiver)
                                        .time(payload_bytes(costs, r.payload, r.from, r.to))
                                        .value;
  }
  for (std::size_t i = 0; i < code.collectives.size(); ++i) {
    const Collective& c = code.collectives[i];
    collective[i] = part_of == nullptr ? collective_seconds(costs, c, c.members)  // no copy of the members
                                       : collective_seconds(costs, c, whole_members(c, *part_of));
  }
  set_shared_links(code, costs.network,
                   part_of == nullptr ? ranks : static_cast<std::size_t>(part_of->whole.world()), part_of);
}

void Prices::set_shared_links(const Instructions& code, const Network& network, std::size_t ranks,
                              const PartOf* part_of) {
  shared_link_count = 0;
  const bool any = std::any_of(network.levels.begin(), network.levels.end(),
                               [](const NetworkLevel& level) { return level.shared_by == SharedBy::child; });
  if (!any) return;
  shared_links.resize(code.routes.size());
  // Every level has at most as many children with ranks in them as there are ranks.
  const auto shared_link = [&](std::size_t level, std::int64_t child, std::size_t direction) {
    return static_cast<std::int32_t>((level * ranks + static_cast<std::size_t>(child)) * 2 + direction);
  };
  for (std::size_t i = 0; i < code.routes.size(); ++i) {
    const auto [sender, receiver] = ends_of(code.routes[i], part_of);
    if (sender == receiver) {
      shared_links[i] = SharedLinks{};
      continue;
    }
    const Network::Path path = network.path(sender, receiver);
    shared_links[i] =
        path.shared ? SharedLinks{shared_link(path.level, path.from, 0), shared_link(path.level, path.to, 1)}
                    : SharedLinks{};
    if (path.shared) shared_link_count = network.levels.size() * ranks * 2;
  }
}

}  // namespace stagecraft::simulator
