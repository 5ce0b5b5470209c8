#pragma once

// graph.txt, the profiles that PipeDream's profiler writes (SOSP'19, 3.1): lines of nodes, then of edges.
//
//   node1 -- Conv2d(3, 64, kernel_size=(3, 3)) -- forward_compute_time=1.250, backward_compute_time=2.500,
//       activation_size=[4096.0; 512.0], parameter_size=1792.000 -- stage_id=0          (one line)
//   <TAB>node1 -- node2
//
// Times are milliseconds per mini-batch, sizes are bytes; several outputs are a list of sizes and are summed;
// fractions of a byte are rounded. `-- stage_id=` may be there and is not used. A description holds anything
// but " -- ". Blank lines mean nothing, lines may end in CR LF.

#include "partitioner/graph/layer_graph.h"

#include <string>

namespace stagecraft {

/// What a file may be at most; no model comes near.
inline constexpr std::size_t kMostGraphBytes = 64UL << 20U;
inline constexpr std::size_t kMostGraphNodes = 20'000;
inline constexpr std::size_t kMostGraphEdges = 1'000'000;
inline constexpr double kMostNodeBytes = 1e12;  ///< of one node's activation, and of its parameters

/// Throws InputError with `file` and the line, saying what was expected: lines that are neither nodes nor
/// edges, numbers that are malformed, negative, infinite or absurd, ids that stand twice, edges that stand
/// twice or name no node, cycles, no nodes at all.
[[nodiscard]] LayerGraph graph_from_text(const std::string& text, const std::string& file);
[[nodiscard]] LayerGraph read_graph(const std::string& path);

}  // namespace stagecraft
