#include "stagecraft/engine/run/device_reserve.h"

#include <algorithm>

namespace stagecraft {
namespace {

constexpr Bytes kWorkspace{std::int64_t{32} << 20};
constexpr Bytes kCommunicator{std::int64_t{64} << 20};
constexpr std::int64_t kBlocksShare = 20;

/// Of the rank's stages, in bytes of the type that sums have.
Bytes largest_parameter(const RunSetup& setup, Rank rank) {
  const Model& model = setup.materials().model;
  Bytes largest;
  for (const StageId stage : setup.placement().stages_of(rank)) {
    const auto [first, last] = setup.layers_of_stages()[stage.index()];
    for (int layer = first; layer < last; ++layer) {
      for (const ParameterSpec& parameter : model.layers[static_cast<std::size_t>(layer)]->parameters()) {
        std::int64_t bytes = static_cast<std::int64_t>(c10::elementSize(model.precision.full));
        for (const std::int64_t size : parameter.shape) bytes *= size;
        largest = std::max(largest, Bytes{bytes});
      }
    }
  }
  return largest;
}

int communicators_of(const transport::NcclWiring& wiring, Rank rank) {
  const auto lines =
      std::count_if(wiring.channels.begin(), wiring.channels.end(),
                    [&](const transport::NcclChannel& line) { return line.from == rank || line.to == rank; });
  const auto groups =
      std::count_if(wiring.groups.begin(), wiring.groups.end(), [&](const transport::NcclGroup& group) {
        return std::find(group.members.begin(), group.members.end(), rank) != group.members.end();
      });
  return static_cast<int>(lines + groups);
}

}  // namespace

DeviceReserve device_reserve(const DeviceUse& use) {
  return {.workspaces = kWorkspace * (use.records ? 2 : 1),
          .communicators = kCommunicator * use.communicators,
          .recordings = use.records ? use.transient * std::max(0, use.in_flight - 1) : Bytes{},
          .norm = use.largest_gradient * 2,
          .blocks = Bytes{use.proved.value / kBlocksShare}};
}

DeviceUse device_use(const RunSetup& setup, Rank rank, Bytes proved, Bytes transient,
                     const transport::NcclWiring& wiring) {
  const RunConfig& config = setup.config();
  DeviceUse use{.proved = proved,
                .transient = transient,
                .largest_gradient = config.gradient_norm ? largest_parameter(setup, rank) : Bytes{},
                .in_flight = 0,
                .communicators = communicators_of(wiring, rank),
                .records = config.cuda.graphs};
  for (const StageProof& stage : setup.programs().proof().stages) {
    if (stage.rank == rank) use.in_flight = std::max(use.in_flight, stage.in_flight);
  }
  return use;
}

}  // namespace stagecraft
