#pragma once

// What processes refuse, they refuse alike.

#include "engine/transport/transport.h"

#include <functional>

namespace stagecraft {

/// Of processes: each does `work` by itself, and none goes on where one throws: all throw the error of the lowest such
/// rank, of the same class and with the same words. Collective. A PeerError of `work` is thrown at once, but for
/// a TakenOverError, which says nothing of the other ranks.
void together(Transport& transport, const std::function<void()>& work);

}  // namespace stagecraft
