// cluster.json: what is read is written and read back the same, and any two devices can talk to each other,
// and all together.

#include "base/error.h"
#include "base/json.h"
#include "schedules/costs/collectives.h"
#include "test/fuzz/json_changes.h"
#include "test/fuzz/judge_files.h"
#include "test/fuzz/target.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

FUZZ_MUTATOR(cluster_json) { return stagecraft::fuzz::mutate_json(data, size, max_size, seed); }

FUZZ_TARGET(cluster_json) {
  using namespace stagecraft;
  Cluster cluster;
  try {
    cluster = json::read<Cluster>(json::parse_text(std::string(data, data + size), "x"), {"x", ""});
    validate(cluster, "x");
  } catch (const InputError&) {
    return 0;
  }
  fuzz::accepted();
  fuzz::require_reads_back(cluster);
  fuzz::require(!cluster.usable_memory() || *cluster.usable_memory() > Bytes{}, "there is memory");
  const Network network = cluster.network();
  const int devices = cluster.devices();
  const Rank last{devices - 1};
  for (int d = 0; d + 1 < std::min(devices, 8); ++d) {
    fuzz::require(std::isfinite(network.between(Rank{d}, last).time(kMostActivationBytes).value),
                  "a transfer takes a time");
    (void)network.path(last, Rank{d});
  }
  std::vector<Rank> members;
  for (int d = 0; d < std::min(devices, 16); ++d) members.emplace_back(d);
  fuzz::require(std::isfinite(all_reduce(network, members, kMostWeightBytes).time().value),
                "an all-reduce takes a time");
  return 0;
}
