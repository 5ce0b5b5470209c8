#pragma once

// What a transport needs of one rank's device to work beside what is computed: streams, events, copies. Back
// ends: cuda/, none/ (a build without CUDA), and test/support/fake_device.h, which runs streams as threads
// over the CPU's memory and refuses work that lacks an event.
//
// Threads: belongs to its rank's thread. Nothing here blocks.
// Failure: InternalError for what CUDA reports.

#include "base/ids.h"

#include <cstddef>
#include <memory>
#include <utility>

namespace stagecraft {

class DeviceStreams {
 public:
  /// A queue of the device. `compute` is the one that the engine's operators run on.
  enum class Stream : int { compute = 0 };
  /// A mark in a stream.
  enum class Event : int {};

  /// Waits for nothing: ends of what is under way are the caller's.
  virtual ~DeviceStreams() = default;

  [[nodiscard]] virtual Stream make_stream() = 0;
  /// The most that make_stream() may give without two of them sharing a hardware queue, in which one could
  /// wait behind the other.
  [[nodiscard]] virtual int most_streams() const = 0;

  /// Of a pool; given back it may be taken again, even while a stream still waits for what it marked.
  [[nodiscard]] virtual Event take_event() = 0;
  /// One whose marks between() tells apart. Costs the device a little more.
  [[nodiscard]] virtual Event take_timed_event() = 0;
  virtual void give_event(Event event) = 0;
  /// Marks the present end of `stream`.
  virtual void record(Event event, Stream stream) = 0;
  /// What is put on `stream` from now on begins when what `event` marks now is over.
  virtual void wait(Stream stream, Event event) = 0;
  [[nodiscard]] virtual bool over(Event event) = 0;
  /// From what `begin` marks to what `end` marks by the device's clock, below 0 where `end` was first. Both are timed
  /// and over.
  [[nodiscard]] virtual Seconds between(Event begin, Event end) = 0;

  /// Copies between memory of the device and host memory made here.
  virtual void copy(Stream stream, void* to, const void* from, std::size_t bytes) = 0;
  /// Page-locked: a device copies from and to it by itself.
  [[nodiscard]] virtual std::shared_ptr<void> host_memory(std::size_t bytes) = 0;
};

/// An event, given back when this goes.
class HeldEvent {
 public:
  enum class Kind { plain, timed };
  explicit HeldEvent(std::shared_ptr<DeviceStreams> streams, Kind kind = Kind::plain)
      : streams_(std::move(streams)),
        event_(kind == Kind::timed ? streams_->take_timed_event() : streams_->take_event()) {}
  ~HeldEvent() { streams_->give_event(event_); }
  HeldEvent(const HeldEvent&) = delete;
  HeldEvent& operator=(const HeldEvent&) = delete;

  void record(DeviceStreams::Stream stream) const { streams_->record(event_, stream); }
  /// What is put on `stream` from now on begins when what this marks now is over.
  void before(DeviceStreams::Stream stream) const { streams_->wait(stream, event_); }
  [[nodiscard]] bool over() const { return streams_->over(event_); }
  /// As DeviceStreams::between().
  [[nodiscard]] Seconds since(const HeldEvent& begin) const {
    return streams_->between(begin.event_, event_);
  }

 private:
  std::shared_ptr<DeviceStreams> streams_;
  DeviceStreams::Event event_;
};

/// This process's device `index`, for the thread that asks. Throws InputError where the build is without
/// CUDA.
[[nodiscard]] std::shared_ptr<DeviceStreams> make_device_streams(int index);

}  // namespace stagecraft
