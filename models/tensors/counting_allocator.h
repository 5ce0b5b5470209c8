#pragma once

// Counts requested tensor bytes on the CPU: every tensor storage allocated through ATen, per account.
// Installed once per process, in front of LibTorch's own CPU allocator. What is counted is what the checker's
// memory proof counts.

#include "base/ids.h"

#include <cstdint>
#include <memory>

namespace stagecraft {

/// A running count. Thread-safe; bytes freed on another thread are taken off the account they were charged
/// to.
class MemoryAccount {
 public:
  [[nodiscard]] Bytes live() const;
  [[nodiscard]] Bytes peak() const;
  void reset_peak();  ///< to what is live now

 private:
  friend struct AccountAccess;
  struct Counters;
  std::shared_ptr<Counters> counters_;

 public:
  MemoryAccount();
};

/// While it lives, allocations of this thread are charged to `account`. Nests.
class ChargeTo {
 public:
  explicit ChargeTo(MemoryAccount& account);
  ~ChargeTo();
  ChargeTo(const ChargeTo&) = delete;
  ChargeTo& operator=(const ChargeTo&) = delete;

 private:
  void* previous_;
};

/// Installs the allocator and has malloc keep freed memory for the next step; later calls do nothing. Called
/// by main and by test mains, before any tensor exists.
void install_counting_allocator();

}  // namespace stagecraft
