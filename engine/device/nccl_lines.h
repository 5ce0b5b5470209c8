#pragma once

// NCCL's point-to-point launches on one rank's device, and the communicators behind them. Back ends as of
// streams.h.
//
// Threads: belongs to its rank's thread. Nothing here blocks, but open().
// Failure: PeerError for what NCCL reports.

#include "engine/device/streams.h"

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace stagecraft {

class NcclLines {
 public:
  using Stream = DeviceStreams::Stream;

  /// One rank's end of a one-way line to another rank: a communicator of two, number 0 sends, 1 receives.
  struct End {
    int channel = 0;
    bool sends = false;
    std::string id;  ///< from make_id() of the sending end
  };

  /// Ends whatever is under way.
  virtual ~NcclLines() = default;

  [[nodiscard]] virtual std::string make_id() = 0;
  /// Opens this rank's ends and moves a byte through each, so that no later launch has to wait for a
  /// connection. All ranks call it at once, with ends in ascending order of channels. Throws PeerError when
  /// that takes longer than `timeout`.
  virtual void open(const std::vector<End>& ends, Seconds timeout) = 0;
  /// The k-th send of a channel meets its k-th receive; sizes must be equal. The device's memory must stay
  /// until the launch is over.
  virtual void send(int channel, Stream stream, const void* from, std::size_t bytes) = 0;
  virtual void receive(int channel, Stream stream, void* into, std::size_t bytes) = 0;

  /// What has gone wrong behind a launch, on any channel; nothing as long as all is well.
  [[nodiscard]] virtual std::optional<std::string> failure() = 0;
  /// Ends all channels, so that streams which wait for a peer go on. Nothing may be launched afterwards.
  virtual void abort() noexcept = 0;
};

/// On the device of `streams`. Throws InputError where the build is without CUDA.
[[nodiscard]] std::shared_ptr<NcclLines> make_nccl_lines(std::shared_ptr<DeviceStreams> streams);

}  // namespace stagecraft
