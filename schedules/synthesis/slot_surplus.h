#pragma once

// How many slots beyond those read at once lowering gives every channel of an order, so as not to slow it
// down (LoweringOptions::slots_for_speed): what unit_time.h finds of a program, found of orders, fast enough
// for the inner loop of a search.

#include "schedules/synthesis/problem.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace stagecraft::synthesis {

/// Of one problem. Not safe for two threads at once.
class SlotSurplus {
 public:
  /// Keeps a reference to `problem`.
  explicit SlotSurplus(const Problem& problem);

  /// `orders` are well formed. Most often one run along them, in units of time.
  [[nodiscard]] int of(const Orders& orders);

 private:
  using Ticks = std::int64_t;

  struct Channel {
    int transfers = 0;
    int held = 0;     // most read at once
    int reading = 0;  // while that is counted
    int slots = 0;
    std::vector<Ticks> released;
  };
  /// Sends of one kind from a seat that no receive may be posted for yet, oldest first.
  struct Window {
    std::size_t count = 0;
    std::array<std::size_t, 2> sends{};
  };
  struct Transfer {
    bool travels = false;
    std::size_t channel = 0;
    int number = 0;  // in its channel
    Ticks sent = -1;
  };

  void count_held(const Orders& orders);
  /// With so many more slots than are read at once: the time it takes; nothing when it comes to a stand.
  [[nodiscard]] std::optional<Ticks> time(const Orders& orders, int surplus);
  bool act(std::size_t rank, const Compute& c);
  bool compute(std::size_t rank, const Compute& c);
  bool send(std::size_t rank, const Compute& c);
  [[nodiscard]] Ticks posted(const Transfer& transfer) const;  // -1: not yet

  /// The activation into a stage; the gradient into it is next to it.
  [[nodiscard]] std::size_t into(int stage, MicroBatch mb) const {
    return 2 * (static_cast<std::size_t>(stage) * static_cast<std::size_t>(problem_.micro_batches()) +
                mb.index());
  }

  const Problem& problem_;
  std::vector<Transfer> transfers_;
  std::vector<Channel> channels_;  // two a seat
  std::vector<Window> windows_;    // two a seat
  std::vector<Ticks> clock_;       // per rank
  std::vector<std::size_t> next_;  // per rank
  std::vector<char> computed_;     // per rank: that one is done, what it sends is not
  int most_transfers_ = 0;
  bool held_up_ = false;  // some computation waited for a slot: more of them might be faster
};

}  // namespace stagecraft::synthesis
