#pragma once

#include "base/describe.h"

#include <array>
#include <cstdint>

namespace stagecraft {

/// How NCCL sums over copies. ordered: copy 0's values plus copy 1's, and so on, which is what a loop over the
/// micro-batches of each replica in turn adds up to, to the bit. nccl: one ncclAllReduce where no rank has two
/// copies, in NCCL's own order; for two copies that is the same, as a + b = b + a.
enum class SumOrder : std::uint8_t { ordered, nccl };
template <>
inline constexpr std::array enum_names<SumOrder>{"ordered", "nccl"};

}  // namespace stagecraft
