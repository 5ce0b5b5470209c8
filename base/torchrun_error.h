#pragma once

// What torchrun's summary says of this process. torchrun names a file to each worker (TORCHELASTIC_ERROR_FILE), reads
// it when the worker has ended, and shows as root cause the failure with the earliest time, in whole seconds
// (torch.distributed.elastic.multiprocessing.errors; python/stagecraft/torchrun.py does the same for scripts).

#include "base/failure.h"

#include <cstdint>
#include <string>

namespace stagecraft {

/// The file's text. `now`: seconds since 1970. A secondary failure is a second later, so that the one it only heard of
/// is the root cause.
[[nodiscard]] std::string torchrun_error_text(const Failure& failure, std::int64_t now);

/// Writes that file. Does nothing without the variable, in a process that a program asked (launch.h), and where the file is there already: what was told first stays.
/// An empty message says that another rank tells the reason. Takes two seconds at most; for a process on its way out.
void leave_torchrun_error(const Failure& failure) noexcept;

}  // namespace stagecraft
