#pragma once

// Memory that runs out where no exception can go: in a destructor, or another function that must not throw, of ours or
// of a library's. C++ ends the process there (std::terminate). This makes it an end like others.

namespace stagecraft::cli {

/// From now on such an end has its line on standard error and exit code 3. What other exceptions do there stays as it
/// is. For a program's first lines; takes no memory.
void end_in_order_without_memory() noexcept;

/// The command's work is done, with this exit code: it stays, whatever fails in what C++ and libraries still clean up.
int done_with(int code) noexcept;

}  // namespace stagecraft::cli
