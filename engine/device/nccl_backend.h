#pragma once

// NCCL's launches on one rank's device, and the communicators behind them: lines, each from one rank to
// another, and groups, whose members sum. Back ends as of streams.h.
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

class NcclBackend {
 public:
  using Stream = DeviceStreams::Stream;

  /// One rank's end of a one-way line to another rank: a communicator of two, number 0 sends, 1 receives.
  struct Endpoint {
    int channel = 0;
    bool sends = false;
    std::string id;  ///< from make_id() of the sending end
  };

  /// This rank's place in a group: a communicator of `members`, of which number 0 made the id.
  struct Membership {
    int group = 0;
    int members = 0;
    int number = 0;  ///< of this rank
    std::string id;
    bool small = false;  ///< moves little: as few blocks as a line
  };

  enum class NumberType { float32, float64, uint8 };
  /// Numbers in the device's memory.
  struct Numbers {
    void* first = nullptr;
    std::size_t count = 0;
    NumberType type = NumberType::float32;
  };

  /// Ends whatever is under way.
  virtual ~NcclBackend() = default;

  [[nodiscard]] virtual std::string make_id() = 0;
  /// Opens this rank's ends, then its groups, and moves something through each, so that no later launch has
  /// to wait for a connection. All ranks call it at once, with both in ascending order, so that no two wait
  /// for each other. Throws PeerError when that takes longer than `timeout`.
  virtual void open(const std::vector<Endpoint>& ends, const std::vector<Membership>& groups,
                    Seconds timeout) = 0;
  /// The k-th send of a channel meets its k-th receive; sizes must be equal. The device's memory must stay
  /// until the launch is over.
  virtual void send(int channel, Stream stream, const void* from, std::size_t bytes) = 0;
  virtual void receive(int channel, Stream stream, void* into, std::size_t bytes) = 0;

  // The k-th launch of a group is that of all its members, with equal sizes; a launch takes several tensors.
  // All are in place.

  /// Every member has the sum, with the same bits: a + b for two members, for more in an order of NCCL's own.
  virtual void all_reduce(int group, Stream stream, const std::vector<Numbers>& tensors) = 0;
  /// The member `root` has the sum; what the others have stays.
  virtual void reduce(int group, Stream stream, int root, const std::vector<Numbers>& tensors) = 0;
  /// Every member has what the member `root` has.
  virtual void broadcast(int group, Stream stream, int root, const std::vector<Numbers>& tensors) = 0;

  /// What has gone wrong behind a launch, on any line or group; nothing as long as all is well.
  [[nodiscard]] virtual std::optional<std::string> failure() = 0;
  /// Ends all lines and groups, so that streams which wait for a peer go on. Nothing may be launched
  /// afterwards.
  virtual void abort() noexcept = 0;
};

/// On the device of `streams`. Throws InputError where the build is without CUDA.
[[nodiscard]] std::shared_ptr<NcclBackend> make_nccl_lines(std::shared_ptr<DeviceStreams> streams);

}  // namespace stagecraft
