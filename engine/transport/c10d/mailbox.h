#pragma once

// What a c10d transport has of its own at the threads of the lines: transfers under way, what ranks bring to
// collectives, failures.
//
// A receive opens a place at its rank and tells the sender so, with its length; the sender answers with the bytes.
// So nothing travels that nobody waits for, lengths are compared before a byte does, and a receive that was
// posted ahead costs the transfer nothing. What is short travels in the answer itself.
//
// Rank 0's mailbox collects what all bring to a collective or an agreement, and tells them the result.

#include "engine/transport/c10d/lines.h"
#include "engine/transport/c10d/matching.h"

#include <ATen/core/Tensor.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace stagecraft::transport {

/// One half of a transfer.
struct C10dHalf {
  bool send = false;
  bool texts = false;
  Rank peer;
  Tag tag;
  at::Tensor tensor;  ///< until it is over
  std::chrono::steady_clock::time_point begun;
  std::unique_ptr<Wire::Move> coming;  ///< a long receive's
  std::string refusal;                 ///< why it is over, if not by its bytes; written before `over`
  std::atomic<bool> over = false;
};

/// Thread-safe. Outlives the lines, which may call it at any time.
class Mailbox {
 public:
  Mailbox(std::int32_t number, Rank rank, int world, Lines& lines);
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  // The rank's own calls. None of them waits for another rank.

  /// Before all others: so many ranks come to its collectives, the first ones; all, if it is not called.
  void meet(int ranks);

  void begin(const std::shared_ptr<C10dHalf>& half);
  /// To collective `number`, which `what` names.
  void bring(std::uint32_t number, const std::string& what, const std::string& mine);
  /// What each rank brought, once all have. Throws InternalError where they came to different ones.
  [[nodiscard]] std::optional<std::vector<std::string>> take_result(std::uint32_t number);
  void agree(std::uint32_t number, int mine);
  [[nodiscard]] std::optional<int> take_agreed(std::uint32_t number);
  void tell_failure(const std::string& reason, bool meets);

  struct Failure {
    Rank rank;
    std::string reason;
    bool meets = false;
  };
  /// Cheap while there is none.
  [[nodiscard]] std::optional<Failure> failure() const;

  /// Grows whenever something happens that a wait may be for.
  [[nodiscard]] std::uint64_t events() const { return events_.load(std::memory_order_acquire); }
  /// Until they are no longer so many, or so long.
  void sleep(std::uint64_t events, std::chrono::milliseconds longest);

  /// The lines' call.
  void take(Rank from, Message&& message);

 private:
  using Half = std::shared_ptr<C10dHalf>;
  struct Round {
    std::vector<std::string> whats, brought;
    int arrived = 0;
  };
  struct Question {
    int most = 0;
    int arrived = 0;
  };

  [[nodiscard]] Message message(Message::Kind kind) const;
  void post_to_all(const Message& message);
  /// Sends what `half` has to its receive's place.
  void answer(const Half& half, const Opening& opening);
  void finish(C10dHalf& half);
  void happen();
  [[nodiscard]] Half take_receive(std::uint32_t place);
  void collect(Rank from, std::uint32_t number, const std::string& bytes);
  void count(std::uint32_t number, int brought);

  const std::int32_t number_;
  const Rank rank_;
  Lines& lines_;
  std::atomic<std::uint64_t> events_ = 0;
  std::atomic<bool> failed_ = false;  ///< failure_ is there

  mutable std::mutex mutex_;  ///< of what follows
  std::condition_variable woken_;
  int world_;
  Matching<Half> matching_;
  std::unordered_map<std::uint32_t, Half> receives_;  ///< by place
  std::map<std::uint32_t, Round> rounds_;             ///< rank 0's
  std::map<std::uint32_t, std::string> results_;
  std::map<std::uint32_t, Question> questions_;  ///< rank 0's
  std::map<std::uint32_t, int> agreed_;
  std::optional<Failure> failure_;
};

}  // namespace stagecraft::transport
