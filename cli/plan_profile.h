#pragma once

// The profiles that `plan` takes: profile.json, and the graph.txt of PipeDream's profiler. A file whose name
// ends in ".txt" is the latter.

#include "partitioner/graph/layer_graph.h"
#include "partitioner/plan/profile.h"

#include <cstdint>
#include <optional>
#include <string>

namespace stagecraft::cli {

[[nodiscard]] bool is_graph(const std::string& path);

/// For the planner. A graph becomes a chain (graph/chain.h), with `micro_batch_size` samples in its
/// mini-batch: it does not say how many; 1 stands for all where that is not given, and a note says so.
[[nodiscard]] Profile read_chain(const std::string& path, std::optional<std::int64_t> micro_batch_size);

/// For PipeDream's optimizer. Of a profile.json with several micro-batch sizes one must be chosen.
[[nodiscard]] LayerGraph read_layer_graph(const std::string& path,
                                          std::optional<std::int64_t> micro_batch_size);

/// The size to plan for: as asked, or the only one that was measured. Throws InputError when there are
/// several.
[[nodiscard]] std::int64_t size_to_plan(const Profile& profile, const std::string& path,
                                        std::optional<std::int64_t> asked);

/// What people should know who plan a run on GPUs, or on none (`on_gpus`), with this profile: that it is of another
/// device. `gpu` names the GPU of the run; empty: not known. Empty: it is of the same kind, or an estimate.
[[nodiscard]] std::string other_device(const Profile& profile, bool on_gpus, const std::string& gpu = "");

}  // namespace stagecraft::cli
