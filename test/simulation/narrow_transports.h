#pragma once

// Transports with limits that are reached within a few steps.

#include "engine/transport/mpi/mpi_tag.h"
#include "test/support/forwarding_transport.h"

#include <cstdint>
#include <functional>
#include <utility>

namespace stagecraft::test {

/// Knows a transfer by nothing but the integer that MPI would match by, of as few bits as any MPI may give, and of a run
/// whose micro-batches are so many numbers on.
class NarrowTags final : public ForwardingTransport {
 public:
  NarrowTags(Transport& inner, std::int32_t micro_batches_before)
      : ForwardingTransport(inner), before_(micro_batches_before) {}

  [[nodiscard]] RequestPtr post_receive(Rank from, const Tag& tag, const at::Tensor& into) override {
    return ForwardingTransport::post_receive(from, narrow(tag), into);
  }
  [[nodiscard]] RequestPtr start_send(Rank to, const Tag& tag, const at::Tensor& tensor) override {
    return ForwardingTransport::start_send(to, narrow(tag), tensor);
  }
  [[nodiscard]] RequestPtr post_send(Rank to, const Tag& tag, const at::Tensor& tensor) override {
    return ForwardingTransport::post_send(to, narrow(tag), tensor);
  }

 private:
  [[nodiscard]] Tag narrow(Tag tag) const {
    tag.number += before_;
    return {.from = StageId{0}, .to = StageId{1}, .number = layout_.encode(tag)};
  }

  static constexpr int kFewestBits =
      transport::MpiTagLayout::kKindBits + transport::MpiTagLayout::kIndexBits +
      transport::MpiTagLayout::kStageBits + transport::MpiTagLayout::kLeastMicroBatchBits;
  transport::MpiTagLayout layout_{(1 << kFewestBits) - 1};
  std::int32_t before_;
};

/// Calls `dies` in place of the call of this number.
class DyingTransport final : public ForwardingTransport {
 public:
  DyingTransport(Transport& inner, std::int64_t call, std::function<void()> dies)
      : ForwardingTransport(inner), left_(call), dies_(std::move(dies)) {}

  [[nodiscard]] RequestPtr post_receive(Rank from, const Tag& tag, const at::Tensor& into) override {
    count();
    return ForwardingTransport::post_receive(from, tag, into);
  }
  [[nodiscard]] RequestPtr start_send(Rank to, const Tag& tag, const at::Tensor& tensor) override {
    count();
    return ForwardingTransport::start_send(to, tag, tensor);
  }
  void wait(Request& request) override {
    count();
    ForwardingTransport::wait(request);
  }
  [[nodiscard]] std::vector<std::vector<double>> all_gather(const std::vector<double>& mine) override {
    count();
    return ForwardingTransport::all_gather(mine);
  }

 private:
  void count() {
    if (left_-- == 0) dies_();
  }

  std::int64_t left_;
  std::function<void()> dies_;
};

}  // namespace stagecraft::test
