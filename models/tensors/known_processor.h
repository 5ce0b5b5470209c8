#pragma once

namespace stagecraft {

/// Throws RefusedError where LibTorch has asked what the processor can do, and had no memory for the answer. It computes
/// with its code for any processor then, without a word and until the process ends: with other bits.
void require_known_processor();

}  // namespace stagecraft
