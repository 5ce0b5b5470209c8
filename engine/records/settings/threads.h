#pragma once

namespace stagecraft {

/// Operator threads per rank: beyond what any machine has cores, where the OpenMP runtime ends the process.
inline constexpr int kMostThreadsPerRank = 1024;

}  // namespace stagecraft
