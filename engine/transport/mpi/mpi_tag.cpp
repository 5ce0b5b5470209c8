#include "engine/transport/mpi/mpi_tag.h"

#include "base/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdlib>

namespace stagecraft::transport {

MpiTagLayout::MpiTagLayout(int upper_bound) {
  // All numbers of this many bits are at most upper_bound.
  const int bits =
      static_cast<int>(std::bit_width(static_cast<std::uint64_t>(std::max(0, upper_bound)) + 1)) - 1;
  const int left = bits - kKindBits - kIndexBits - kStageBits;
  micro_batch_bits_ = std::min(left, kMostMicroBatchBits);
  if (micro_batch_bits_ < kLeastMicroBatchBits) {
    throw InputError(fmt::format("this MPI allows tags up to {} only; at least {} is needed", upper_bound,
                                 (1 << (kKindBits + kIndexBits + kStageBits + kLeastMicroBatchBits)) - 1));
  }
}

int MpiTagLayout::encode(const Tag& tag) const {
  std::uint32_t code = 0;
  int shift = 0;
  const auto put = [&](std::int32_t value, int bits, const char* what) {
    if (value < 0 || value >= (1 << bits)) {
      throw InputError(fmt::format("{} {} does not fit into an MPI tag (below {})", what, value, 1 << bits));
    }
    code |= static_cast<std::uint32_t>(value) << shift;
    shift += bits;
  };
  constexpr std::int32_t kSum = 3;
  static_assert(static_cast<std::int32_t>(Payload::loss) < kSum);
  put(tag.is_reduction() ? kSum : static_cast<std::int32_t>(tag.payload), kKindBits, "payload");
  if (tag.is_loss() || tag.is_reduction()) {
    // A loss's index is the replica it comes from: its sender, by which MPI matches in any case.
    put(tag.is_loss() ? 0 : tag.index, kIndexBits, "phase");
    put(tag.from.value, kStageBits, "stage");
  } else {
    STAGECRAFT_CHECK(tag.index == 0, "a boundary has one tensor");
    const std::int32_t passed = std::abs(tag.to.value - tag.from.value) - 1;
    const bool far = passed >= kFar;
    put(far ? kFar : passed, kIndexBits, "stages passed");
    constexpr std::int32_t kNear = 1 << (kStageBits / 2);
    if (far && std::max(tag.from.value, tag.to.value) >= kNear) {
      throw InputError(
          fmt::format("{} passes {} stages, which does not fit into an MPI tag behind stage {}: let values "
                      "go from stage to stage (\"pipeline\": {{\"skips\": \"relay\"}})",
                      describe_tag(tag), passed, kNear - 1));
    }
    put(far ? tag.from.value * kNear + tag.to.value : tag.from.value, kStageBits, "stage");
  }
  put(tag.number % (1 << micro_batch_bits_), micro_batch_bits_, "micro-batch");
  return static_cast<int>(code);
}

}  // namespace stagecraft::transport
