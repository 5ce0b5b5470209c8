#pragma once

// `stagecraft::gru`, `stagecraft::gru_backward` and `stagecraft::gru_backward_weight` of captured graphs: the steps
// of one layer and direction of a GRU, as eager PyTorch takes them on the CPU, and autograd's backward of them, to
// the bit (python/stagecraft_capture/gru.py). In a graph each step would be two dozen operators. The product of all
// inputs stays one of the graph's own. The same code runs on devices.

namespace stagecraft::captured {

/// Registers them with LibTorch's dispatcher, once.
void register_gru();

}  // namespace stagecraft::captured
