#pragma once

// SIGHUP as the process was given it. UCX, which Open MPI may bring along, takes the signal for its debugging as
// soon as it is loaded: nohup would not hold then, and a terminal that goes away would end nothing.

namespace stagecraft {

/// Ignores SIGHUP if the process was started that way, and lets it end the process if not, whatever libraries
/// have made of it since. For a program's first line, before it has handlers of its own. Linked into
/// executables alone: what has been given is noted before the shared libraries start.
void hangup_as_given();

}  // namespace stagecraft
