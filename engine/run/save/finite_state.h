#pragma once

// Nothing that is not finite is saved or gone on from, and a run that stops says how to go on.

#include "engine/core/overflow.h"
#include "engine/core/worker.h"
#include "engine/run/resolve/setup.h"
#include "engine/transport/transport.h"

#include <cstdint>
#include <string>

namespace stagecraft {

/// Collective, before the state after `steps` steps is saved. Throws NotFiniteError, the same on all ranks,
/// which names a tensor of any rank's state that is not finite. Reads every tensor once.
void require_finite_state(const Worker& worker, Transport& transport, std::int64_t steps);

/// The same after a state or weights were loaded from `folder`; throws InputError.
void require_finite_load(const Worker& worker, Transport& transport, const std::string& folder);

/// What to do after `error`: some sentences, the first about a sample of that step whose numbers are not finite, where
/// there is one. `checkpoint`: the newest one; "": there is none.
[[nodiscard]] std::string how_to_go_on(const NotFiniteError& error, const RunSetup& setup,
                                       const std::string& checkpoint);

}  // namespace stagecraft
