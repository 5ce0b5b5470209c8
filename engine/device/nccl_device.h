#pragma once

// What the NCCL transport needs of one rank's device: streams, events and point-to-point launches. Back ends:
// cuda/ (CUDA and NCCL), none/ (a build without them), and test/support/fake_device.h, which runs streams as
// threads over the CPU's memory and refuses a launch that lacks an event.
//
// Threads: belongs to its rank's thread. Nothing here blocks, but open().
// Failure: PeerError for what NCCL reports, InternalError for what CUDA does.

#include "schedules/base/ids.h"

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace stagecraft {

class NcclDevice {
 public:
  /// A queue of the device. `compute` is the one that the engine's operators run on.
  enum class Stream : int { compute = 0 };
  /// A mark in a stream.
  enum class Event : int {};

  /// One rank's end of a one-way line to another rank: a communicator of two, number 0 sends, 1 receives.
  struct End {
    int channel = 0;
    bool sends = false;
    std::string id;  ///< from make_id() of the sending end
  };

  /// Ends whatever is under way.
  virtual ~NcclDevice() = default;

  [[nodiscard]] virtual Stream make_stream() = 0;
  /// The most that make_stream() may give without two of them sharing a hardware queue, in which one could
  /// wait behind the other.
  [[nodiscard]] virtual int most_streams() const = 0;

  /// Of a pool; given back it may be taken again, even while a stream still waits for what it marked.
  [[nodiscard]] virtual Event take_event() = 0;
  virtual void give_event(Event event) = 0;
  /// Marks the present end of `stream`.
  virtual void record(Event event, Stream stream) = 0;
  /// What is launched on `stream` from now on begins when what `event` marks now is over.
  virtual void wait(Stream stream, Event event) = 0;
  [[nodiscard]] virtual bool over(Event event) = 0;

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

/// This process's device `index`, for the thread that asks. Throws InputError where the build is without
/// CUDA.
[[nodiscard]] std::unique_ptr<NcclDevice> make_nccl_device(int index);

}  // namespace stagecraft
