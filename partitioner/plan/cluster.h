#pragma once

// cluster.json: the machines a plan is made for. Levels innermost first, as in Network.

#include "schedules/costs/costs.h"

#include <optional>
#include <string>
#include <vector>

namespace stagecraft {

struct Cluster {
  std::string name;
  std::vector<NetworkLevel> levels;  ///< the product of counts is the number of devices
  std::optional<Bytes> memory;
  Bytes memory_reserve;
  std::vector<double> speed;

  [[nodiscard]] int devices() const;
  [[nodiscard]] double fastest() const;  ///< speed of the fastest device
  [[nodiscard]] std::optional<Bytes> usable_memory() const {
    if (!memory) return std::nullopt;
    return *memory - memory_reserve;
  }
  [[nodiscard]] Network network() const { return Network{levels}; }
};

void describe(auto& v, Cluster& c) {
  v.optional("name", c.name, "for people");
  v.required("levels", c.levels, "innermost first: devices of a machine, machines of a rack, ...",
             json::non_empty());
  v.optional("memory_bytes", c.memory, "per device; absent: no cap", json::above(0));
  v.optional("memory_reserve_bytes", c.memory_reserve,
             "of it, left to contexts, libraries and fragmentation");
  v.optional("speed", c.speed, "relative speed per device; empty: all 1");
}

/// One speed per device or none, a sane number of devices, a reserve below the memory. Throws InputError with
/// `file` and the pointer.
void validate(const Cluster& cluster, const std::string& file);
/// Figures that devices and links can have: others are slips in their unit, and would plan as they stand. Throws
/// InputError likewise.
void require_plausible(const Cluster& cluster, const std::string& file);
[[nodiscard]] Cluster read_cluster(const std::string& path);  ///< parse, read, validate, require_plausible

/// Devices in one machine behind one kind of link, memory not capped.
[[nodiscard]] Cluster flat_cluster(const std::string& name, int devices, const Link& link);

}  // namespace stagecraft
