#pragma once

// What a run saves that ends on its own account: by an operator's refusal, a data file that cannot be read, a
// gradient that is not finite. The rank that fails calls the others off, all meet in a transport that was made
// for it, and where each has the state of the same whole step they save it there.

#include "engine/core/worker.h"
#include "engine/run/resolve/setup.h"
#include "engine/run/save/run_dir.h"
#include "engine/transport/transport.h"

#include <cstdint>
#include <optional>
#include <string>

namespace stagecraft {

/// Of the transport in which ranks meet: nobody waits for long for one that does not come.
[[nodiscard]] TransportOptions meeting_options(const RunConfig& config);

struct LastState {
  /// Whole on this rank: Worker::whole_state(). Absent: none.
  std::optional<std::int64_t> step;
  bool validation_owed = false;  ///< after that step, as far as this rank came
  std::int64_t saved = -1;       ///< step of the newest checkpoint; -1: none
  std::string checkpoint;        ///< that one's folder; "": none
};

struct LastSave {
  std::string checkpoint;  ///< the newest there is now; "": none
  std::string words;       ///< what there is to go on from, as a sentence for people
};

/// Collective over `meeting`. Older checkpoints stay, whatever checkpoint.keep says: what went wrong may have begun
/// before this step. `unfinished`: see save_checkpoint.
[[nodiscard]] LastSave save_last_state(const RunSetup& setup, const RunPaths& paths, const Worker& worker,
                                       Transport& meeting, const LastState& state, std::string& unfinished);

}  // namespace stagecraft
