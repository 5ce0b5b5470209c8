#pragma once

// Data on its way to a device, ahead of its use: the copy of the next micro-batch begins when one is taken,
// on a stream of its own, and so goes on beside what is computed of that one.

#include "models/data/loader.h"

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <memory>
#include <optional>
#include <vector>

namespace stagecraft {

/// Between a loader and an executor whose device is not the CPU. At most one micro-batch is ahead, and only
/// one that the loader has read by the time the one before is taken: nothing here waits for data earlier than
/// its own take(), and nothing but take() waits for the loader. The host never waits for a copy.
///
/// Used by one thread, on which the device's current stream, the one that computes, is always the same.
class DeviceFeed final : public BatchSource {
 public:
  /// `loader`'s batches lie in page-locked memory of LibTorch's, where the device is a GPU. `copies`: a
  /// stream of the device beside the one that computes. Several feeds may share it. `prompt`: take() waits for the
  /// loader to have read the next one, so that one is ahead whenever there can be.
  DeviceFeed(std::unique_ptr<Loader> loader, c10::Stream copies, bool prompt = false);
  ~DeviceFeed() override;
  DeviceFeed(const DeviceFeed&) = delete;
  DeviceFeed& operator=(const DeviceFeed&) = delete;

  void announce(const std::vector<MicroBatchRange>& ranges) override;
  /// On the device. What is computed from now on waits for its copy.
  [[nodiscard]] Batch take(const MicroBatchRange& range) override;

 private:
  [[nodiscard]] c10::Stream computes() const;
  /// Puts a copy on its stream; `copied_` is behind it.
  [[nodiscard]] Batch begin_copy(const Batch& host);

  std::unique_ptr<Loader> loader_;
  c10::Stream copies_;
  bool prompt_;
  c10::Event memory_free_;  ///< of the stream that computes
  c10::Event copied_;       ///< of the newest copy, and so of all
  std::optional<Loader::Ready> ahead_;
};

}  // namespace stagecraft
