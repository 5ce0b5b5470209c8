#include "engine/core/device_feed.h"

#include <ATen/ops/empty_like.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <exception>
#include <utility>

namespace stagecraft {

DeviceFeed::DeviceFeed(std::unique_ptr<Loader> loader, c10::Stream copies, bool prompt)
    : loader_(std::move(loader)),
      copies_(copies),
      prompt_(prompt),
      memory_free_(copies.device_type()),
      copied_(copies.device_type()) {}

DeviceFeed::~DeviceFeed() {
  if (!ahead_) return;
  try {
    // Its memory goes back to the stream that computes, and nobody has waited for the copy into it.
    copied_.block(computes());
  } catch (const std::exception&) {
    // The device has failed: nothing will be computed in that memory.
  }
}

c10::Stream DeviceFeed::computes() const {
  return c10::impl::VirtualGuardImpl(copies_.device_type()).getStream(copies_.device());
}

void DeviceFeed::announce(const std::vector<MicroBatchRange>& ranges) {
  if (!ahead_) return loader_->announce(ranges);
  std::vector<MicroBatchRange> others = ranges;  // what is ahead is announced already and not taken yet
  std::erase(others, ahead_->range);
  loader_->announce(others);
}

Batch DeviceFeed::begin_copy(const Batch& host) {
  // The memory is the computing stream's, which may have it again as soon as the batch is let go of: its last
  // use is on that stream. LibTorch's allocator may have taken it from work that is launched and not over, so
  // the copy waits for what is launched by now, which is all before the micro-batch that is being taken.
  // Were it the copying stream's instead and recorded for the other (Tensor::record_stream), the copy would
  // wait for nothing, but the allocator would hold each batch until it happens to look whether its last use
  // is over: more memory than is counted, and how much would be a matter of time.
  const auto allocate = [&](const at::Tensor& like) {
    return like.defined() ? at::empty_like(like, like.options().device(copies_.device())) : at::Tensor();
  };
  Batch batch{allocate(host.inputs), allocate(host.targets), {}, host.samples};
  for (const auto& [name, field] : host.fields) batch.fields[name] = allocate(field);
  memory_free_.record(computes());
  memory_free_.block(copies_);
  {
    // copy_ goes over the current stream and records it with the allocator of page-locked memory, which keeps
    // the host's batch until the copy is over, though it is let go of here.
    const c10::StreamGuard on_copies(copies_);
    if (host.inputs.defined()) batch.inputs.copy_(host.inputs, /*non_blocking=*/true);
    if (host.targets.defined()) batch.targets.copy_(host.targets, /*non_blocking=*/true);
    for (const auto& [name, field] : host.fields) batch.fields[name].copy_(field, /*non_blocking=*/true);
  }
  copied_.record(copies_);
  return batch;
}

Batch DeviceFeed::take(const MicroBatchRange& range) {
  const bool here = ahead_ && ahead_->range == range;
  Batch batch = here ? std::exchange(ahead_, std::nullopt)->batch : begin_copy(loader_->take(range));
  copied_.block(computes());
  if (ahead_) return batch;
  if (prompt_) loader_->await_ready();
  if (std::optional<Loader::Ready> next = loader_->take_ready()) {
    ahead_ = {next->range, begin_copy(next->batch)};
  }
  return batch;
}

}  // namespace stagecraft
