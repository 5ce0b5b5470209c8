#pragma once

// Enough processors for the host side of ranks on GPUs. Launchers bind: Open MPI gives each of two ranks one
// core, which its thread, its loader, its transfers and NCCL's threads then share.

#include "engine/transport/cores.h"

#include <string>
#include <vector>

namespace stagecraft {

/// A rank's thread, its loader, and the proxies and launches of NCCL.
inline constexpr int kCoresPerGpuRank = 4;

/// For people, once per run: which ranks may use fewer cores than that, and what to do. `ranks`: what the
/// process of each rank may use, by rank. "" where all have enough.
[[nodiscard]] std::string few_cores_note(const std::vector<transport::CoreCounts>& ranks);

/// As text between processes.
[[nodiscard]] std::string cores_text(const transport::CoreCounts& cores);
[[nodiscard]] transport::CoreCounts cores_from_text(const std::string& text);

}  // namespace stagecraft
