#pragma once

// Numbers all tags a program can have without gaps, so that tables of transfers need no hashing.

#include "schedules/program/program.h"

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace stagecraft {

class TagNumbers {
 public:
  explicit TagNumbers(const ProgramHeader& header)
      : stages_(header.placement.stages()),
        micro_batches_(header.micro_batches()),
        groups_(header.groups()),
        reporters_(header.placement.replicas(StageId{stages_ - 1})),
        skips_(header.skips) {}

  [[nodiscard]] std::size_t size() const { return losses() + to_size(groups_) * to_size(reporters_); }
  /// Losses have the numbers from here to `size()`.
  [[nodiscard]] std::size_t losses() const {
    return (to_size(stages_ - 1) + skips_.size()) * 2 * to_size(micro_batches_);
  }

  /// The activation that leaves a stage which is not the last, and the gradient that leaves one which is not
  /// the first, for the neighbour.
  [[nodiscard]] std::size_t activation(StageId from, MicroBatch mb) const {
    return from.index() * 2 * to_size(micro_batches_) + mb.index();
  }
  [[nodiscard]] std::size_t gradient(StageId from, MicroBatch mb) const {
    return (from.index() * 2 - 1) * to_size(micro_batches_) + mb.index();
  }
  /// Of the program's skips the `skip`-th.
  [[nodiscard]] std::size_t skipping(Payload payload, std::size_t skip, MicroBatch mb) const {
    const std::size_t boundary = to_size(stages_ - 1) + skip;
    return (boundary * 2 + (payload == Payload::gradient ? 1 : 0)) * to_size(micro_batches_) + mb.index();
  }
  [[nodiscard]] std::size_t loss(Group group, std::int32_t replica) const {
    return losses() + group.index() * to_size(reporters_) + to_size(replica);
  }

  /// `size()` when the program has no such transfer.
  [[nodiscard]] std::size_t of(const Tag& tag) const {
    if (tag.is_loss()) {
      const bool known = tag.from.value == stages_ - 1 && tag.to.value == 0 && tag.group().valid() &&
                         tag.group().value < groups_ && tag.replica() >= 0 && tag.replica() < reporters_;
      return known ? loss(tag.group(), tag.replica()) : size();
    }
    if (tag.is_reduction() || tag.tensor() != 0 || !tag.micro_batch().valid() ||
        tag.micro_batch().value >= micro_batches_) {
      return size();
    }
    const bool forward = tag.payload == Payload::activation;
    const auto [before, behind] = forward ? std::pair(tag.from, tag.to) : std::pair(tag.to, tag.from);
    if (before.value >= 0 && behind.value == before.value + 1 && behind.value < stages_) {
      return forward ? activation(tag.from, tag.micro_batch()) : gradient(tag.from, tag.micro_batch());
    }
    for (std::size_t k = 0; k < skips_.size(); ++k) {
      if (skips_[k] == Skip{before, behind}) return skipping(tag.payload, k, tag.micro_batch());
    }
    return size();
  }

  /// The tag of a number below `size()`.
  [[nodiscard]] Tag tag(std::size_t number) const {
    const auto n = static_cast<std::int32_t>(number);
    const auto losses_from = static_cast<std::int32_t>(losses());
    if (n >= losses_from) {
      return Tag::loss(StageId{stages_ - 1}, Group{(n - losses_from) / reporters_},
                       (n - losses_from) % reporters_);
    }
    const std::int32_t boundary = n / micro_batches_ / 2;
    const bool forward = n / micro_batches_ % 2 == 0;
    const MicroBatch mb{n % micro_batches_};
    const Skip ends = boundary < stages_ - 1 ? Skip{StageId{boundary}, StageId{boundary + 1}}
                                             : skips_[to_size(boundary - (stages_ - 1))];
    return forward ? Tag::activation(ends.from, ends.to, mb) : Tag::gradient(ends.to, ends.from, mb);
  }

  /// First number and how many there are, of transfers of the same payload between the same stages; of losses
  /// all.
  [[nodiscard]] std::pair<std::uint32_t, std::uint32_t> boundary(std::uint32_t number) const {
    const auto count = static_cast<std::uint32_t>(micro_batches_);
    const auto losses_from = static_cast<std::uint32_t>(losses());
    if (number >= losses_from) return {losses_from, static_cast<std::uint32_t>(size()) - losses_from};
    return {number / count * count, count};
  }

 private:
  static std::size_t to_size(std::int32_t n) { return static_cast<std::size_t>(n); }

  std::int32_t stages_;
  std::int32_t micro_batches_;
  std::int32_t groups_;
  std::int32_t reporters_;
  std::vector<Skip> skips_;
};

}  // namespace stagecraft
