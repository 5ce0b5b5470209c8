#include "engine/run/resolve/device_reserve.h"

#include <algorithm>

namespace stagecraft {
namespace {

constexpr Bytes kWorkspace{std::int64_t{32} << 20};
constexpr Bytes kLine{std::int64_t{64} << 20};
constexpr Bytes kGroup{std::int64_t{192} << 20};
constexpr std::int64_t kBlocksShare = 20;

/// Counts the parameters of layers [first, last), and the numbers of the largest one.
void count_gradients(const Model& model, int first, int last, DeviceUse& use) {
  for (int layer = first; layer < last; ++layer) {
    for (const ParameterSpec& parameter : model.layers[static_cast<std::size_t>(layer)]->parameters()) {
      std::int64_t numbers = 1;
      for (const std::int64_t size : parameter.shape) numbers *= size;
      use.largest_gradient = std::max(use.largest_gradient, numbers);
      ++use.gradients;
    }
  }
}

/// LibTorch's norm of a list (ATen/native/cuda/ForeachReduceOp.cu): a double for each chunk of the largest gradient, for
/// every gradient, and a result each, of the least that the allocator gives.
Bytes norm_scratch(std::int64_t gradients, std::int64_t largest) {
  constexpr std::int64_t kChunk = 65536, kResult = 512;
  return Bytes{gradients * ((largest + kChunk - 1) / kChunk * 8 + kResult)};
}

int lines_of(const transport::NcclWiring& wiring, Rank rank) {
  return static_cast<int>(std::count_if(
      wiring.channels.begin(), wiring.channels.end(),
      [&](const transport::NcclChannel& line) { return line.from == rank || line.to == rank; }));
}

/// Those of norms, which are made like lines, or the others.
int groups_of(const transport::NcclWiring& wiring, Rank rank, bool norms) {
  return static_cast<int>(
      std::count_if(wiring.groups.begin(), wiring.groups.end(), [&](const transport::NcclGroup& group) {
        return group.sum.is_norms() == norms &&
               std::find(group.members.begin(), group.members.end(), rank) != group.members.end();
      }));
}

}  // namespace

DeviceReserve device_reserve(const DeviceUse& use) {
  return {.workspaces = kWorkspace * (use.records ? 2 : 1),
          .communicators = kLine * use.lines + kGroup * use.groups,
          .recordings = use.records ? use.transient * std::max(0, use.in_flight - 1) : Bytes{},
          .norm = norm_scratch(use.gradients, use.largest_gradient),
          .blocks = Bytes{use.proved.value / kBlocksShare}};
}

DeviceReserve reserve_before_planning(const RunConfig& config, const Model& model, int ranks,
                                      Bytes available) {
  constexpr int kLinesInTheMiddle = 4;
  DeviceUse use;
  use.proved = available;
  use.lines = ranks > 1 ? kLinesInTheMiddle : 0;
  use.records = config.cuda.graphs;
  if (config.gradient_norm) count_gradients(model, 0, static_cast<int>(model.layers.size()), use);
  return device_reserve(use);
}

void cap_at_card(Cluster& cluster, const RunConfig& config, const Model& model, Bytes available,
                 int ranks_per_card) {
  const Bytes each{available.value / ranks_per_card};
  cluster.memory = each;
  const Bytes reserve = reserve_before_planning(config, model, cluster.devices(), each).sum();
  cluster.memory_reserve = std::min(reserve, each - Bytes{1});
}

DeviceUse device_use(const RunSetup& setup, Rank rank, Bytes proved, Bytes transient,
                     const transport::NcclWiring& wiring) {
  const RunConfig& config = setup.config();
  DeviceUse use{.proved = proved,
                .transient = transient,
                .gradients = 0,
                .largest_gradient = 0,
                .in_flight = 0,
                .lines = lines_of(wiring, rank) + groups_of(wiring, rank, /*norms=*/true),
                .groups = groups_of(wiring, rank, /*norms=*/false),
                .records = config.cuda.graphs};
  for (const StageId stage : setup.placement().stages_of(rank)) {
    const auto [first, last] = setup.layers_of_stages()[stage.index()];
    if (config.gradient_norm) count_gradients(setup.inputs().model, first, last, use);
  }
  for (const StageProof& stage : setup.programs().proof().stages) {
    if (stage.rank == rank) use.in_flight = std::max(use.in_flight, stage.in_flight);
  }
  return use;
}

}  // namespace stagecraft
