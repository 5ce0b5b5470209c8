#pragma once

// Connects the processes that a launcher started, for what they do together.

#include "base/launch.h"
#include "engine/transport/process_session.h"

#include <memory>
#include <string>

namespace stagecraft {

/// Which of torch.distributed's groups has all processes of torchrun, and the verb that is run.
struct Together {
  std::string process_group;  ///< "": Python has made none, and torchrun's processes have its store alone
  std::string command;        ///< "train"
};

/// Throws InputError where the processes of `launch` are several that nothing can connect. Only rank 0's has a text.
void require_connectable(const LaunchInfo& launch, const Together& together);

/// Collective, over MPI or, under torchrun, over the group or the store. Throws InputError where not all of the processes are
/// connected; said once.
[[nodiscard]] std::unique_ptr<ProcessSession> connect_processes(const LaunchInfo& launch,
                                                                const Together& together);

}  // namespace stagecraft
