#pragma once

// A c10d group as threads of one process, with Gloo's manners (engine/transport/c10d/wire.h): a transfer can only be
// waited for, a send is over when its receive was posted, and one that is longer than its receive ends the process.

#include "engine/transport/c10d/wire.h"

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

namespace stagecraft::test {

class FakeGroup {
 public:
  explicit FakeGroup(int world) : world_(world), cut_(static_cast<std::size_t>(world), false) {}

  /// That of one rank; the group outlives it.
  [[nodiscard]] std::unique_ptr<transport::Wire> wire(Rank rank);
  /// As when the rank's process has ended: every transfer with it throws, but what has come in already.
  void cut_off(Rank rank);
  /// Bytes of the longest transfer so far.
  [[nodiscard]] std::size_t longest() const;

 private:
  class FakeWire;
  struct Half;
  using Key = std::tuple<int, int, int>;  // from, to, tag

  const int world_;
  mutable std::mutex mutex_;
  std::condition_variable woken_;
  std::map<Key, std::deque<std::shared_ptr<Half>>> sends_, receives_;
  std::vector<bool> cut_;
  std::size_t longest_ = 0;
};

}  // namespace stagecraft::test
