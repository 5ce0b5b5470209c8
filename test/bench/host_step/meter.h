#pragma once

// Processor time and allocations of one rank's thread on a fake device, where the thread is the host and the device at
// once: which share is the host's work.

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace stagecraft::test {

class Meter {
 public:
  /// waiting: the host polls for other hosts, or blocks for them, and does nothing else.
  enum class Who : std::uint8_t { host, device, waiting };

  /// Of the calling thread.
  static Meter& here();
  /// Measures what the meter itself adds to the host's time, for all threads that begin later.
  static void calibrate();

  struct Reading {
    double us = 0;  ///< without what the meter itself took
    std::size_t allocations = 0;
    std::int64_t calls = 0;     ///< of streams and NCCL
    std::int64_t launches = 0;  ///< without operators
  };

  void begin();
  /// The host's since begin().
  [[nodiscard]] Reading end();

  /// While the object lives `who` works.
  class As {
   public:
    explicit As(Who who);
    ~As();
    As(const As&) = delete;
    As& operator=(const As&) = delete;
  };

  /// The host polls as long as the object lives: a turn in which it launched and sent nothing is a wait.
  class Polling {
   public:
    /// `works`: until the first turn(), the host works.
    explicit Polling(bool works);
    ~Polling();
    Polling(const Polling&) = delete;
    Polling& operator=(const Polling&) = delete;

   private:
    bool was_on_, was_of_use_;
  };
  /// Where the host polls, a turn ends and the next one begins.
  void turn();

  /// The host calls the device.
  void called() { ++(polling_ ? turn_ : share_of(Who::host)).calls; }
  /// It has launched something that is no operator.
  void launched() {
    ++launches_;
    of_use_ = true;
  }
  /// It has begun a message to another host, or from one.
  void sent() { of_use_ = true; }

 private:
  struct Share {
    double us = 0;
    std::size_t allocations = 0;
    std::int64_t calls = 0;
    Share& operator+=(const Share& other);
  };
  [[nodiscard]] Share& share_of(Who who) { return shares_[static_cast<std::size_t>(who)]; }
  void charge();
  void settle_turn();

  std::array<Share, 3> shares_{};
  Share turn_{};  ///< of the host's, since the present turn began
  std::vector<Who> working_{Who::host};
  double last_us_ = 0;
  std::size_t last_allocations_ = 0;
  std::int64_t launches_ = 0;
  bool polling_ = false, of_use_ = false;
};

}  // namespace stagecraft::test
