#include "stagecraft/partitioner/graph/coarsening.h"

#include "stagecraft/base/error.h"
#include "stagecraft/partitioner/graph/branches.h"
#include "stagecraft/partitioner/graph/chain.h"

#include <algorithm>
#include <utility>

namespace stagecraft {
namespace {

/// So much fewer runs each time.
constexpr double kFewer = 0.8;

/// Chains behind forks as blocks, in a row.
Blocks branch_row(const LayerGraph& graph) {
  CompressedGraph compressed = compress_branches(graph);
  Blocks row;
  for (const int block : narrow_order(compressed.graph)) {
    row.push_back(std::move(compressed.members[to_size(block)]));
  }
  return row;
}

/// `row`, an order along the edges, as at most about `count` runs of neighbours that have, as far as nodes
/// allow it, equally much of the work and of the nodes.
Blocks runs_of(const LayerGraph& graph, const Blocks& row, std::size_t count) {
  double work = 0;
  for (const LayerNode& node : graph.nodes) work += node.compute().value;
  const auto size_of = [&](const std::vector<int>& nodes) {  // all together 1
    double part = 0;
    for (const int node : nodes) part += graph.nodes[to_size(node)].compute().value;
    const double share = static_cast<double>(nodes.size()) / static_cast<double>(graph.nodes.size());
    return work > 0 ? (part / work + share) / 2 : share;
  };
  // Two neighbouring runs have together more than what one may have.
  const double most = 2.0 / static_cast<double>(count + 1);
  Blocks runs;
  double size = 0;
  for (const std::vector<int>& nodes : row) {
    const double own = size_of(nodes);
    if (runs.empty() || (count > 1 && size + own > most)) {  // one run has all, however the sizes round
      runs.emplace_back();
      size = 0;
    }
    runs.back().insert(runs.back().end(), nodes.begin(), nodes.end());
    size += own;
  }
  return runs;
}

}  // namespace

Downsets coarsen(const LayerGraph& graph, const DownsetLimits& limits) {
  const auto downsets_of = [&](const Blocks& blocks) {
    return blocks.size() > kMostBlocks ? std::nullopt : Downsets::of(graph, blocks, limits);
  };
  if (auto found = downsets_of(single_nodes(narrow_order(graph)))) return std::move(*found);
  const Blocks row = branch_row(graph);
  if (row.size() < graph.nodes.size()) {
    if (auto found = downsets_of(row)) return std::move(*found);
  }
  for (std::size_t count = std::min(row.size(), kMostBlocks);;
       count = static_cast<std::size_t>(kFewer * static_cast<double>(count))) {
    // One run is two downsets, and one step between them.
    if (auto found = downsets_of(runs_of(graph, row, std::max<std::size_t>(count, 1))))
      return std::move(*found);
    STAGECRAFT_CHECK(count > 1, "limits allow two downsets");
  }
}

}  // namespace stagecraft
