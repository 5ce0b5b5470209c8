#pragma once

// PipeDream's optimizer under its own cost model, as optimizer_graph_hierarchical.py computes it
// (SOSP'19, 3.1 "Partitioning algorithm"; the code differs from the paper in details, and the code is what is
// followed).
//
// A stage is what lies between two states (states.h), on m machines of one level. With C its compute and P
// its parameter bytes, B the level's bandwidth, M the level's machines, g those of the level within (1 at the
// first):
//   the first stage         (C + 4 (m-1) P / (B m g)) / m
//   every later one         (C + 4 (m-1) P / (B m)) / m
//   with a compression R    a later stage takes at least 2 a / (B m R) for the a bytes of the cut before it,
//                           and the same for the cut behind it, if there is one
// and a level's value is the largest over its stages, whose machines add up to M. The next level treats each
// stretch between two states as one unit of compute: the value that all machines of this level reach on it.
//
// docs/design/pipedream.md says what this model leaves out and where PipeDream's code differs. Stretches
// between states of which neither contains the other mean nothing and are not planned here. Sums are rounded
// in another order: results agree to about 12 digits.

#include "partitioner/pipedream/states.h"

#include <optional>
#include <vector>

namespace stagecraft::pipedream {

/// One level of the cluster: so many machines, each with all that the level within has.
struct Level {
  int machines = 1;
  double bytes_per_second = 1e9;
};

struct Options {
  std::vector<Level> levels;    ///< innermost first, at least one
  bool straight = false;        ///< one machine per stage at every level, and so as many stages as machines
  bool fewer_machines = false;  ///< machines may be left over
  /// Bytes per device: a stage keeps its activations and parameters once for every round its followers are
  /// behind, ceil((M - machines used so far) / m) times, and once more for none. Absent: unlimited.
  std::optional<double> memory;
  std::optional<double> compression;  ///< of activations; absent: transfers take no time
};

/// What one level does with the stretch that a stage lies in.
struct StageLevel {
  int replicas = 1;
  double all_reduce = 0;  ///< seconds, before division by the replicas
  double transfer = 0;    ///< seconds per mini-batch, the longer of in and out; 0 without a compression
};

struct Stage {
  int from = -1;                   ///< state before which everything is in earlier stages; -1: none
  int to = 0;                      ///< state with which it ends
  std::vector<int> nodes;          ///< of StateGraph::graph: what lies between the two
  std::vector<StageLevel> levels;  ///< innermost first
  double compute = 0;              ///< seconds per mini-batch on one device
  double parameters = 0;           ///< bytes
  double time = 0;  ///< seconds per mini-batch with everything; the plan's largest is its bottleneck

  [[nodiscard]] int devices() const {
    int product = 1;
    for (const StageLevel& level : levels) product *= level.replicas;
    return product;
  }
};

struct Result {
  std::vector<Stage> stages;
  double bottleneck = 0;     ///< seconds per mini-batch
  double one_device = 0;     ///< all compute on one device
  double data_parallel = 0;  ///< all nodes replicated over all devices
  int devices = 1;           ///< there are, of all levels
  int devices_left = 0;      ///< not used
};

/// Among plans of equal bottleneck the same one each time: at every level and from the end, no cut if none is
/// needed, else the earliest cut, and of those the narrowest last stage.
/// Throws InputError for levels or options that make no sense, RefusedError when no plan exists (a straight
/// pipeline longer than the graph, too little memory) or finding it would take minutes.
[[nodiscard]] Result optimize(const StateGraph& states, const Options& options);

}  // namespace stagecraft::pipedream
