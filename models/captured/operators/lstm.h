#pragma once

// `stagecraft::lstm` and `stagecraft::lstm_backward` of captured graphs: one layer and direction of an LSTM by
// oneDNN's kernel, which eager PyTorch calls on the CPU, to the bit. ATen's operator hands a workspace of that
// library's from forward to backward, of a size that no file can declare and no kernel checks. Here the
// backward makes it again. Devices have another form (device_kernels.h).

namespace stagecraft::captured {

/// Registers both with LibTorch's dispatcher, once.
void register_lstm();

}  // namespace stagecraft::captured
