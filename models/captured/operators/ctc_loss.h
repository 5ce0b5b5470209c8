#pragma once

// `stagecraft::ctc_loss` and `stagecraft::ctc_loss_backward` of captured graphs: connectionist temporal classification
// by LibTorch's kernel, to the bit, for targets that are padded to one length (Graves et al., ICML 2006). ATen's
// operator hands a table from forward to backward whose size follows from the longest target of the batch. No graph
// file can declare that size, so the backward makes the table again. Both check what the kernel trusts: lengths
// and classes. The host reads them: a device is waited for (kWaitOnDevices).

namespace stagecraft::captured {

/// Registers both with LibTorch's dispatcher, once.
void register_ctc_loss();

}  // namespace stagecraft::captured
