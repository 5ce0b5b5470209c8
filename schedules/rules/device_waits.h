#pragma once

// Where a host may wait for its whole device. A GPU does that unasked: when a kernel is loaded, memory is had
// or given back, a graph is made. It then waits for everything that the host has launched, which a program of
// launched operations (TransportRules::Sends::launched) survives where all of it comes to an end without
// anything that this host launches later. A receive ends when its send was launched, a send when its receive
// was, a sum over replicas when all members have joined it; and what the other ranks' hosts launch until then
// may need something of this rank's again. No other host is taken to wait at that moment.
//
// Where operations are announced, one that goes to the device before its wait does so because the other end
// has come there or is certain to: only those count whose wait has been passed. Unannounced ones count from
// their start_send, post_receive, or last backward into a sum's group.

#include "schedules/program/program.h"
#include "schedules/rules/transport_rules.h"

#include <cstdint>
#include <optional>

namespace stagecraft {

class Dependencies;

/// The places are before each compute and step action of each rank.
struct DeviceWaits {
  std::int64_t places = 0;
  // At how many of them the wait would never end, for each kind of operation by itself.
  std::int64_t receives = 0;
  std::int64_t sends = 0;
  std::int64_t sums = 0;
  std::optional<ActionPlace> first{};  ///< the first place, of the lowest rank, where it would not

  [[nodiscard]] bool safe() const { return !first.has_value(); }
};

/// `program` is accepted under `rules`, whose operations are launched, and `dependencies` is of the two. Time
/// is linear in actions times ranks, divided by 8.
[[nodiscard]] DeviceWaits device_waits(const LoweredProgram& program, const TransportRules& rules,
                                       const Dependencies& dependencies);

}  // namespace stagecraft
