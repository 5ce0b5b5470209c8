#pragma once

// What hosts tell each other about launches: that an end of a transfer, or a rank's part of a sum, is ready.
// A bell is a message of one byte over the transport of the hosts, by the tag of what it is about, to the rank
// at the other end.
//
// Threads: belongs to its rank's thread.

#include "base/stopwatch.h"
#include "engine/device/streams.h"
#include "engine/transport/transport.h"

#include <ATen/core/Tensor.h>

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace stagecraft::transport {

/// One that is expected.
struct Bell {
  RequestPtr request;
  at::Tensor byte;  ///< that it comes into; undefined once it was heard
};

class Bells {
 public:
  /// `hosts` outlives it.
  Bells(Transport& hosts, std::shared_ptr<DeviceStreams> streams)
      : hosts_(hosts), streams_(std::move(streams)), sent_(one_byte()) {}
  /// Waits until what was rung is heard, but where another rank has failed.
  ~Bells();
  Bells(const Bells&) = delete;
  Bells& operator=(const Bells&) = delete;

  /// Of equal tags the k-th that is rung meets the k-th that is expected.
  void ring(Rank peer, const Tag& tag);
  [[nodiscard]] Bell expect(Rank peer, const Tag& tag);
  [[nodiscard]] bool heard(Bell& expected);
  /// Lets go of those rung that are heard.
  void tidy();

  /// Looks again and again until `done`, while the hosts' transport goes on. Throws PeerError, also when it
  /// takes longer than others are waited for from when the device has computed all that was launched before;
  /// `what` names the wait, and `begun` is when that began.
  void await(const std::function<bool()>& done, const std::function<std::string()>& what,
             Stopwatch::Clock::time_point begun = Stopwatch::Clock::now());

 private:
  [[nodiscard]] static at::Tensor one_byte();

  Transport& hosts_;
  std::shared_ptr<DeviceStreams> streams_;
  const at::Tensor sent_;         ///< by every ring()
  std::vector<at::Tensor> free_;  ///< bytes whose bells were heard
  std::deque<RequestPtr> rung_;
};

}  // namespace stagecraft::transport
