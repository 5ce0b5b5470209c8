#pragma once

// Numbers all tags a program can have without gaps, so that tables of transfers need no hashing.

#include "schedules/program.h"

#include <cstddef>
#include <cstdint>

namespace stagecraft {

class TagNumbers {
 public:
  explicit TagNumbers(const ProgramHeader& header)
      : stages_(header.placement.stages()),
        micro_batches_(header.micro_batches()),
        groups_(header.groups()),
        reporters_(header.placement.width(StageId{stages_ - 1})) {}

  [[nodiscard]] std::size_t size() const { return losses() + to_size(groups_) * to_size(reporters_); }
  /// Losses have the numbers from here to `size()`.
  [[nodiscard]] std::size_t losses() const { return to_size(stages_ - 1) * 2 * to_size(micro_batches_); }

  /// `size()` when the program has no such transfer.
  [[nodiscard]] std::size_t of(const Tag& tag) const {
    if (tag.payload == Payload::loss) {
      const bool known = tag.from.value == stages_ - 1 && tag.to.value == 0 && tag.micro_batch.valid() &&
                         tag.micro_batch.value < groups_ && tag.index >= 0 && tag.index < reporters_;
      return known ? losses() + tag.micro_batch.index() * to_size(reporters_) + to_size(tag.index) : size();
    }
    const bool forward = tag.payload == Payload::activation;
    const std::int32_t boundary = forward ? tag.from.value : tag.to.value;  // the stage before it
    const bool known = boundary >= 0 && boundary + 1 < stages_ && tag.index == 0 &&
                       (forward ? tag.to : tag.from).value == boundary + 1 && tag.micro_batch.valid() &&
                       tag.micro_batch.value < micro_batches_;
    if (!known) return size();
    return (to_size(boundary) * 2 + (forward ? 0 : 1)) * to_size(micro_batches_) + tag.micro_batch.index();
  }

 private:
  static std::size_t to_size(std::int32_t n) { return static_cast<std::size_t>(n); }

  std::int32_t stages_;
  std::int32_t micro_batches_;
  std::int32_t groups_;
  std::int32_t reporters_;
};

}  // namespace stagecraft
