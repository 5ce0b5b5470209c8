#pragma once

// How this process would train, measured here and now: cores, threads, and whether freed activations stay its
// own. For `stagecraft doctor`; docs/guides/measuring.md says what each should be.

#include "engine/run/resolve/launcher.h"

#include <cstdint>
#include <vector>

namespace stagecraft {

struct ProcessFacts {
  LaunchInfo launch;
  transport::CoreCounts cores;
  std::vector<int> bound_to;     ///< cores this process may run on, ascending
  int threads = 1;               ///< of LibTorch's operators, where the config leaves them open
  bool crowded = false;          ///< ranks on this machine outnumber its cores: waits give way
  std::int64_t block_pages = 0;  ///< pages of a block as large as an activation
  double faults_again = 0;       ///< page faults to fill such a block once it was freed and asked for again
};

/// Installs the counting allocator, which sets malloc up as a run has it. Throws InputError as detect_launch
/// does.
[[nodiscard]] ProcessFacts process_facts();

}  // namespace stagecraft
