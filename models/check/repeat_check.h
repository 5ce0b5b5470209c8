#pragma once

// The same bits whenever a layer is called, and whatever else is under way: what makes a pipeline equal to a loop.

#include "models/check/tried_layer.h"

namespace stagecraft {

/// A second call, one that keeps nothing, and one that is done again give the bits of the first. Throws Broken.
void require_repeats(const TriedLayer& tried);

/// Two micro-batches that are under way at once, in any order and with their halves apart, give the bits of one behind
/// the other; so does a backward that makes no gradient of the input. Tried with micro-batches of two sizes and of one, which
/// a tensor that the layer holds would fit. Throws Broken.
void require_apart(const TriedLayer& tried);

}  // namespace stagecraft
