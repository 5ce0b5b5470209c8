#pragma once

// Events of the last steps of a run, as the worker makes them. On the CPU an action takes as long as the host
// is busy with it; on a device as long as there is between two marks around it, since the host only launches.

#include "engine/transport/replica_sum.h"
#include "schedules/program/timeline.h"

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

namespace stagecraft {

class Recorder {
 public:
  using Clock = std::chrono::steady_clock;

  /// A moment: of the host's clock, or in a device's work.
  struct Mark {
    Seconds time;
    std::optional<c10::Event> on_device;
  };

  /// `steps`: how many of the last are kept; 0 records nothing and reads no clock.
  Recorder(Rank rank, int steps, c10::Device device);

  [[nodiscard]] bool on() const { return steps_ > 0; }
  [[nodiscard]] Mark mark() const;
  void record(const Action& action, std::int64_t step, Mark begin, Mark end);
  /// Whether times are the host's own, so that it can tell what happens beside its work.
  [[nodiscard]] bool sees_transfers() const { return on() && device_.is_cpu(); }
  /// A sum that was under way beside the rank's actions. Only where it sees_transfers().
  void record_sum(const Action& action, std::int64_t step, Seconds begin, Seconds end, Bytes bytes);
  /// The same of a sum that a device moved and that has just finished: its `spans` are asked for when events() is,
  /// and those that overlap are told as one.
  void record_spans(const Action& action, std::int64_t step, ReplicaSum::Spans spans);
  /// Of the monotonic clock, when the recorder was made: where event times are 0.
  [[nodiscard]] Seconds origin() const {
    return Seconds{std::chrono::duration<double>(start_.time_since_epoch()).count()};
  }
  /// In the order they began. Waits for the device.
  [[nodiscard]] const std::vector<Event>& events() const;

 private:
  void add(const Event& event);
  struct Pending {
    Event event;
    Mark begin, end;
    ReplicaSum::Spans spans{};  ///< of a sum, which has no `begin`
  };
  /// Its old ones go, before their times are known.
  void add(Pending pending);
  void tell_spans(const Pending& sum) const;
  [[nodiscard]] bool is_old(const Event& event) const { return newest_ - event.step >= steps_; }
  void forget_old_steps() const;
  [[nodiscard]] Seconds time_of(const Mark& mark) const;
  /// Later times are measured from `mark`, which is over: a device tells the time between two events in float32
  /// milliseconds, which after hours is too coarse.
  void measure_from(Mark mark) const;

  Rank rank_;
  int steps_;
  c10::Device device_;
  Clock::time_point start_;
  mutable std::optional<c10::Event> from_;  ///< on the device, what times are measured from
  mutable Seconds from_time_{0};            ///< its own time
  std::int64_t newest_ = 0;
  // Old steps go when the list is read or has doubled, not one by one.
  mutable std::vector<Event> events_;
  mutable std::size_t forget_at_ = 4096;
  mutable std::deque<Pending> pending_;  ///< of a device, by their ends: their times are not known yet
};

}  // namespace stagecraft
