#pragma once

// The sum of tensors over a stage's replicas, in place, with the same bits on all of them: replica 0's values
// plus replica 1's, and so on, whatever the transport. (MPI_Allreduce and ncclAllReduce promise no order.)
//
// Each piece of a tensor is cut into as many parts as there are replicas; a replica gets everybody's values
// of its own part, adds them in order, and gives the others the sum: a reduce-scatter and an all-gather, 2
// (w - 1) / w of the bytes each way (Thakur, Rabenseifner, Gropp, IJHPCA 2005, section 4.5).

#include "engine/transport/transport.h"

#include <vector>

namespace stagecraft {

/// Collective over `replicas`, this rank among them; every one brings tensors of the same shapes, contiguous.
/// Messages go by `tag`, which no other transfer of the segment has. Beside the tensors it needs the others'
/// values of one part: kReduceStaging (schedules/segments.h) at most. Throws PeerError.
void sum_over_replicas(Transport& transport, const std::vector<Rank>& replicas, const Tag& tag,
                       const std::vector<at::Tensor>& tensors);

}  // namespace stagecraft
