#pragma once

// Signs of life between processes. Each process has a small thread that tells rank 0 twice per second what
// its rank does, over a TCP connection of its own; rank 0's thread tells them what it knows of all. The
// rank's own thread may compute, plan or write a file meanwhile: nobody needs to call a transport for that.
//
// The operating system closes the connections of a process that ends, which the others hear at once. A
// process that is stopped, and a machine that is down, sleeps or is cut off, fall silent. Connections go by
// IPv4. Where a firewall lets none through the ranks stay unknown, and the bounds of waits hold alone.
//
// Both ends of a connection prove that they have the secret of the invitation, which ranks get over their transport, before
// they are believed (beat.h). The host listens only where its guests are, and strangers go after a while.
//
// Threads: a thread of its own, and show() and of() from any one.

#include "engine/transport/signs.h"

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace stagecraft::transport {

struct HeartbeatTimes {
  Seconds period{0.5};
  Seconds silent_after{3};  ///< beats that stay away for so long are missed
  Seconds stranger{10};     ///< who has not proved by then who it is goes
};

/// How ranks tell each other where they are, before they have heartbeats. Both are collective.
struct HeartbeatMeeting {
  /// Every rank's text, in rank order, at rank 0; elsewhere whatever.
  std::function<std::vector<std::string>(const std::string& mine)> gather;
  /// Rank 0's text, everywhere.
  std::function<std::string(const std::string& text)> broadcast;
};

class Heartbeats final : public Signs {
 public:
  /// Collective. Rank 0 invites, the others come; null where that cannot be, and for one rank.
  [[nodiscard]] static std::shared_ptr<Heartbeats> meet(Rank rank, int world,
                                                        const HeartbeatMeeting& meeting);
  /// Rank 0's, which listens at `addresses`; `invitation` is what the others need. Null where no socket can be
  /// had.
  [[nodiscard]] static std::unique_ptr<Heartbeats> host(int world, const std::vector<std::string>& addresses,
                                                        std::string& invitation,
                                                        const HeartbeatTimes& times = {});
  /// Another rank's. Null where the invitation is empty or no thread can be had.
  [[nodiscard]] static std::unique_ptr<Heartbeats> guest(Rank rank, int world, const std::string& invitation,
                                                         const HeartbeatTimes& times = {});
  /// Says goodbye.
  ~Heartbeats() override;
  Heartbeats(const Heartbeats&) = delete;
  Heartbeats& operator=(const Heartbeats&) = delete;

  [[nodiscard]] int world() const override { return world_; }
  [[nodiscard]] Sign of(Rank rank) const override;
  void show(Phase phase, bool waits) noexcept override;

 private:
  class Host;
  class Guest;

  Heartbeats(Rank rank, int world);
  /// False: no thread can be had.
  [[nodiscard]] bool start(std::function<void()> loop);
  /// The thread's, between two beats. True: it is to end.
  [[nodiscard]] bool sleep(Seconds period) const;
  /// Replaces what is known.
  void learn(std::vector<Sign> known);

  Rank rank_;
  int world_;
  std::atomic<std::uint8_t> mine_ = 0;  ///< what this rank shows, as it travels
  mutable std::mutex mutex_;
  std::vector<Sign> known_;  ///< by rank
  int wake_ = -1;            ///< an eventfd: readable when the thread is to end
  std::thread thread_;
};

}  // namespace stagecraft::transport
