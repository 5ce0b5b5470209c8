#pragma once

// Updates of weights that lie otherwise in PyTorch than here (ParameterSpec::memory_order).
//
// PyTorch's fused optimizers on the CPU compute full vectors of a tensor's memory, and what is left behind the
// last one by other instructions: the same numbers may come out differently in their last bit. So which elements
// lie last decides, and here others would lie there. Of optimizers that sum over a parameter, the order decides
// too.

#include "base/ids.h"
#include "engine/optimizers/optimizer.h"

#include <cstdint>
#include <vector>

namespace stagecraft {

/// Whether the place of an element in memory can show: the optimizer sums, or the tensor does not end with a
/// line of the cache, which has whole vectors.
[[nodiscard]] bool shows_memory_order(const Optimizer& optimizer, const std::vector<std::int64_t>& order,
                                      std::int64_t elements, std::int64_t element_bytes);

/// Bytes of the copies below, of one parameter and as many tensors of state.
[[nodiscard]] Bytes bytes_of_copies(std::int64_t elements, std::int64_t element_bytes, std::size_t states);

/// Updates by `optimizer`, on copies of those parameters that lie as `orders` has them (empty: as it lies here),
/// with gradients and state; what was updated is then copied back. On devices, whose kernels treat all elements
/// alike, nothing is copied.
void update_as_they_lie(const Optimizer& optimizer, const OptimizerUpdate& update,
                        const std::vector<std::vector<std::int64_t>>& orders);

}  // namespace stagecraft
