#pragma once

// Memory before work: what a run or a profile needs is compared with what the machine has, its cgroups'
// limits included, or with what a GPU has free, before anything large is allocated.

#include "base/machine_memory.h"
#include "engine/run/resolve/setup.h"

#include <c10/core/Device.h>

#include <string>
#include <vector>

namespace stagecraft {

/// One process of a run: its machine, its ranks and what limits it.
struct ProcessMemory {
  std::string machine;  ///< the same on all processes of one machine
  std::vector<Rank> ranks;
  std::vector<MemoryLimit> limits;
};
template <class V>
void describe(V& v, ProcessMemory& p) {
  v.required("machine", p.machine, "the kernel that runs it");
  v.required("ranks", p.ranks, "that are its threads");
  v.required("limits", p.limits, "of its memory");
}

/// Of this process, now. Gives freed memory back to the system first, so that what an earlier profile used is
/// not counted as used.
[[nodiscard]] ProcessMemory process_memory(std::vector<Rank> ranks);

/// Of a rank's GPU, which is all that limits its tensors: ranks of one GPU share the limit.
[[nodiscard]] ProcessMemory process_memory(Rank rank, at::Device device);

/// What one rank needs, and what that is made of.
struct RankNeed {
  std::string name;  ///< "rank 1: stage 1"
  Bytes bytes;
  std::string made_of;  ///< "weights 4.0 GiB, optimizer state 8.0 GiB, ...; largest layer ..."
};
/// As proved; where the plan has no costs the least: weights, gradients and optimizer state. On GPUs with what
/// is not tensors (device_reserve.h).
[[nodiscard]] std::vector<RankNeed> memory_needs(const RunSetup& setup);

/// Throws RefusedError where the ranks that share a limit need more than is left below it: with the ranks,
/// their bytes, the largest contributors, and what would fit. The same on every rank that is given the same.
void check_memory(const RunSetup& setup, const std::vector<ProcessMemory>& processes);

/// What limits the tensors that this process may have on `device`, now: of a GPU, its memory alone.
[[nodiscard]] std::vector<MemoryLimit> tensor_limits(at::Device device);

/// The least bytes that profiling `inputs` takes: weights, gradients and optimizer state of all layers,
/// and the largest layer's input and output.
[[nodiscard]] Bytes least_profile_bytes(const RunConfig& config, const TrainingInputs& inputs);

/// Throws RefusedError where not even that is there, for `processes_here` at once on this machine, or on the
/// GPU whose limit it is. `file` is the config.
void check_profile_memory(const RunConfig& config, const std::string& file, const TrainingInputs& inputs,
                          int processes_here, const std::vector<MemoryLimit>& limits);

}  // namespace stagecraft
