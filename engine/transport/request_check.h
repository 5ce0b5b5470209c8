#pragma once

// What every transport demands of its callers.

#include "engine/transport/transport.h"

namespace stagecraft::transport {

/// Throws InternalError unless `peer` is another rank of the world and `tensor` is defined, contiguous and in
/// memory that the transport takes.
void check_transfer(const Transport& transport, bool send, const Tag& tag, Rank peer,
                    const at::Tensor& tensor);

/// A request is destroyed before its transfer is complete: expected while an exception unwinds and where a rank
/// has failed, of which the caller knows; otherwise a defect, which a destructor can only log.
void report_unfinished(Rank rank, bool send, const Tag& tag, Rank peer) noexcept;

}  // namespace stagecraft::transport
