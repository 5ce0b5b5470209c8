#pragma once

// Where the ranks of one process meet: matches sends with receives, copies, carries collectives and spreads
// failures. Transfers of one (from, to, tag) match in the order they were begun, as in MPI.
//
// Nothing is buffered: the half that comes second copies from the sender's tensor straight into the
// receiver's, outside the lock.

#include "engine/transport/transport.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace stagecraft::transport {

/// One half of a transfer. Shared by its Request and the hub, so that the tensor stays until both have met.
struct LocalHalf {
  bool send = false;
  Rank self, peer;
  Tag tag;
  at::Tensor tensor;
  std::chrono::steady_clock::time_point begun;
  std::atomic<bool> done = false;
  std::shared_ptr<LocalHalf> next;  ///< of the same key, while both wait: the hub's
};

/// Thread-safe. Outlives the transports that share it (they hold it together).
class LocalHub {
 public:
  LocalHub(int world, const TransportOptions& options);

  [[nodiscard]] int world() const { return world_; }
  [[nodiscard]] const TransportOptions& options() const { return options_; }

  /// Matches `half` with its waiting counterpart and copies, or leaves it to wait for that. Throws
  /// InternalError when the two have different sizes.
  void begin(const std::shared_ptr<LocalHalf>& half);
  /// Blocks until `half` is done, and calls `background` (if there is one) whenever another half of this rank
  /// is. `waits` is this rank's. Throws PeerError.
  void wait(const LocalHalf& half, Waits& waits, const std::function<void()>& background);

  using Text = std::shared_ptr<const std::string>;
  /// Blocks until all ranks have come; returns what each brought, in rank order. `what` names the collective:
  /// ranks that come to different ones are told so by an InternalError. `background` is called again and again
  /// in the wait.
  [[nodiscard]] std::vector<Text> exchange(Rank rank, Waits& waits, const std::string& what, std::string mine,
                                           const std::function<void()>& background);

  /// Transport's. `background` is called again and again in the wait.
  void begin_agreement(Rank rank, int mine);
  [[nodiscard]] int finish_agreement(Rank rank, Waits& waits, const std::function<void()>& background);

  /// `meets`: as Transport::call_off.
  void fail(Rank rank, const std::string& reason, bool meets = false) noexcept;
  [[nodiscard]] bool failed() const { return failed_; }
  /// The same one for all ranks; the first to ask makes it, with its options.
  [[nodiscard]] std::shared_ptr<LocalHub> second(const TransportOptions& options);
  /// Throws PeerError when a rank has failed. Cheap.
  void listen(Rank rank) const;

 private:
  struct Key {
    Rank from, to;
    Tag tag;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    std::size_t operator()(const Key& key) const noexcept;
  };
  /// Halves of one key that wait: all of them sends, or all receives. Mostly one.
  struct Waiting {
    std::shared_ptr<LocalHalf> first;
    LocalHalf* last = nullptr;
  };
  struct Failure {
    Rank rank;
    std::string reason;
    bool meets = false;
  };
  /// One collective. Late readers of a finished round hold it themselves.
  struct Round {
    std::string what;
    std::vector<Text> brought;
    std::atomic<int> arrived = 0;  ///< written under the lock; read by those that spin
  };

  struct Agreement {
    int most = 0;
    std::atomic<int> arrived = 0;  ///< as Round's
    int read = 0;
  };
  /// How many agreements a rank has begun, and how many it has heard the answers of.
  struct Agreed {
    std::size_t begun = 0;
    std::size_t heard = 0;
  };

  /// Looks until `done`, for about as long as it takes to fall asleep and wake up a few times; where there is
  /// a core for every rank, else not at all. Whether it is done.
  template <class Done>
  [[nodiscard]] bool spin(const Done& done, const std::function<void()>& background) const;
  void throw_if_failed(Rank rank, const std::string& what) const;
  void finish(LocalHalf& half);

  const int world_;
  const TransportOptions options_;
  const bool spin_;  ///< there is a core for every rank
  mutable std::mutex mutex_;
  std::vector<std::condition_variable> woken_;  ///< by rank
  std::vector<std::uint64_t> finished_;         ///< by rank: halves that others have completed
  std::unordered_map<Key, Waiting, KeyHash> waiting_;
  std::shared_ptr<Round> round_;
  std::deque<Agreement> agreements_;  ///< that somebody has still to hear the answers of
  std::size_t all_heard_ = 0;         ///< agreements before these
  std::vector<Agreed> agreed_;        ///< by rank
  std::optional<Failure> failure_;
  std::shared_ptr<LocalHub> second_;
  std::atomic<bool> failed_ = false;  ///< failure_ is there
};

}  // namespace stagecraft::transport
