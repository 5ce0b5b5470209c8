#include "stagecraft/engine/run/device_reserve.h"

#include <algorithm>

namespace stagecraft {
namespace {

constexpr Bytes kWorkspace{std::int64_t{32} << 20};
constexpr Bytes kCommunicator{std::int64_t{64} << 20};
constexpr std::int64_t kBlocksShare = 20;

/// Counts the parameters of the rank's stages, and the numbers of the largest one.
void count_gradients(const RunSetup& setup, Rank rank, DeviceUse& use) {
  const Model& model = setup.materials().model;
  for (const StageId stage : setup.placement().stages_of(rank)) {
    const auto [first, last] = setup.layers_of_stages()[stage.index()];
    for (int layer = first; layer < last; ++layer) {
      for (const ParameterSpec& parameter : model.layers[static_cast<std::size_t>(layer)]->parameters()) {
        std::int64_t numbers = 1;
        for (const std::int64_t size : parameter.shape) numbers *= size;
        use.largest_gradient = std::max(use.largest_gradient, numbers);
        ++use.gradients;
      }
    }
  }
}

/// LibTorch's norm of a list (ATen/native/cuda/ForeachReduceOp.cu): a double for each chunk of the largest gradient, for
/// every gradient, and a result each, of the least that the allocator gives.
Bytes norm_scratch(std::int64_t gradients, std::int64_t largest) {
  constexpr std::int64_t kChunk = 65536, kResult = 512;
  return Bytes{gradients * ((largest + kChunk - 1) / kChunk * 8 + kResult)};
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
          .norm = norm_scratch(use.gradients, use.largest_gradient),
          .blocks = Bytes{use.proved.value / kBlocksShare}};
}

DeviceUse device_use(const RunSetup& setup, Rank rank, Bytes proved, Bytes transient,
                     const transport::NcclWiring& wiring) {
  const RunConfig& config = setup.config();
  DeviceUse use{.proved = proved,
                .transient = transient,
                .gradients = 0,
                .largest_gradient = 0,
                .in_flight = 0,
                .communicators = communicators_of(wiring, rank),
                .records = config.cuda.graphs};
  if (config.gradient_norm) count_gradients(setup, rank, use);
  for (const StageProof& stage : setup.programs().proof().stages) {
    if (stage.rank == rank) use.in_flight = std::max(use.in_flight, stage.in_flight);
  }
  return use;
}

}  // namespace stagecraft
