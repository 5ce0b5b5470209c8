#pragma once

// Runs a transfer script: every rank goes on until it waits for what has not happened yet, and again when it
// has. Lowering and the search for orders learn here who waits for whom. The checker's dependency graph
// (dependencies.h) says it again of the lowered program, so that a proof does not prove itself; a test holds
// the two together.
//
// What can be waited for is a *condition*: a transfer is sent, a slot is released, all members have come to a
// collective. Each comes true once, at a moment. What a moment is, and what waits for what, is the clock's:
//
//   NoClock    whether the program finishes under a transport's rules
//   TickClock  how long a schedule takes when nothing but its order and its receive slots matter
//   CostClock  what an order costs (synthesis/pricing.h)

#include "schedules/lowering/posting_order.h"
#include "schedules/lowering/transfer_script.h"
#include "schedules/rules/transport_rules.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

namespace stagecraft {

/// The condition under which each transfer's receive is posted, which depends on the slots. Conditions are
/// numbered: a transfer's number says that it is sent, then come start() and never(), then releases rank
/// after rank, then collectives.
class ReceivePosts {
 public:
  /// Keeps a reference to `script`. `missing`: of what nobody receives, start() or never().
  ReceivePosts(const TransferScript& script, std::size_t missing)
      : script_(script),
        condition_of_(script.numbers().size(), static_cast<std::uint32_t>(missing)),
        laid_(script.ranks()) {}

  [[nodiscard]] static std::size_t start(const TransferScript& script) { return script.numbers().size(); }
  [[nodiscard]] static std::size_t never(const TransferScript& script) { return start(script) + 1; }
  [[nodiscard]] static std::size_t first_release(const TransferScript& script, std::size_t rank) {
    return start(script) + 2 + script.first_release(rank);
  }

  /// False when some receive is read before it can be posted (posted_too_late); what stands here then is of
  /// no use.
  [[nodiscard]] bool set(const std::vector<PostOrder>& orders, const SlotCounts& slots);
  /// Each boundary channel has `surplus` slots more than it reads at once; receives are posted as they are
  /// read. Looks only at what was laid again since, unless `surplus` changed.
  void set(std::int32_t surplus);

  [[nodiscard]] std::uint32_t of(std::uint32_t transfer) const { return condition_of_[transfer]; }

 private:
  bool set(std::size_t rank, const PostOrder& order, std::vector<std::int32_t> slots);

  const TransferScript& script_;
  std::vector<std::uint32_t> condition_of_;  // by transfer
  std::vector<std::uint32_t> laid_;          // by rank: TransferScript::laid when it was set
  std::int32_t surplus_ = -1;
};

/// What all clocks have in common. `Clock` derives from this and has
///   wait_receive, wait_send (rank, transfer)  whether the rank goes on
/// and where it differs from what stands here
///   may_send, meet (rank, ...), compute (rank, op, now), arrival (rank, transfer).
/// Those that return false have called await: the rank tries again when what it waits for has happened.
template <class Clock, class MomentOf>
class TransferRun {
 public:
  using Moment = MomentOf;
  static constexpr Moment kUnknown = std::numeric_limits<Moment>::max();

  /// Keeps a reference to `script`, all ranks of which are laid before the first run.
  TransferRun(const TransferScript& script, std::size_t missing)
      : script_(script), posts_(script, missing), lanes_(script.ranks()), next_waiter_(script.ranks()) {}

  /// With so many slots per channel, or so many more than it reads at once; see ReceivePosts. False when it
  /// deadlocks. Linear in the number of events.
  bool run(const std::vector<PostOrder>& orders, const SlotCounts& slots) {
    return posts_.set(orders, slots) && run();
  }
  bool run(std::int32_t surplus) {
    posts_.set(surplus);
    return run();
  }

  // Of the last run.
  [[nodiscard]] const TransferScript& script() const { return script_; }
  [[nodiscard]] Moment now(std::size_t rank) const { return lanes_[rank].now; }
  /// What the rank stands at; null when it is done.
  [[nodiscard]] const TransferEvent* at(std::size_t rank) const {
    return lanes_[rank].next == lanes_[rank].end ? nullptr : lanes_[rank].next;
  }
  [[nodiscard]] Moment when(std::size_t condition) const { return moments_[condition]; }
  [[nodiscard]] bool holds(std::size_t condition) const { return moments_[condition] != kUnknown; }

 protected:
  /// Whether it holds; if not, `rank` goes on when it does.
  bool await(std::uint32_t rank, std::size_t condition) {
    if (holds(condition)) return true;
    next_waiter_[rank] = std::exchange(waiter_[condition], rank);
    return false;
  }
  /// The same, and the rank's time is not before that.
  bool reach(std::uint32_t rank, std::size_t condition) {
    if (!await(rank, condition)) return false;
    lanes_[rank].now = std::max(lanes_[rank].now, moments_[condition]);
    return true;
  }
  /// That the receive of `transfer` is posted.
  [[nodiscard]] std::size_t posted(std::uint32_t transfer) const { return posts_.of(transfer); }
  [[nodiscard]] std::size_t met(std::uint32_t collective) const { return first_collective_ + collective; }

  void happens(std::size_t condition, Moment when) {
    moments_[condition] = when;
    for (std::uint32_t r = std::exchange(waiter_[condition], kNobody); r != kNobody; r = next_waiter_[r])
      runnable_.push_back(r);
  }

  // For clocks that do not mind: sends wait for nothing, nor do collectives.
  static constexpr bool kDrains = false;  ///< the run includes the waits behind TransferScript::drain
  void begin() {}
  void compute(std::uint32_t, Op, Moment&) {}
  bool may_send(std::uint32_t, std::uint32_t) { return true; }
  Moment arrival(std::uint32_t rank, std::uint32_t) { return now(rank); }
  bool meet(std::uint32_t, std::uint32_t) { return true; }

 private:
  static constexpr std::uint32_t kNobody = std::numeric_limits<std::uint32_t>::max();

  struct Lane {
    Moment now{};
    std::uint32_t release = 0;  // the condition that its next release makes true
    const TransferEvent* next = nullptr;
    const TransferEvent* end = nullptr;
  };

  bool run() {
    first_collective_ = ReceivePosts::first_release(script_, script_.ranks());
    moments_.assign(first_collective_ + script_.members().size(), kUnknown);
    moments_[ReceivePosts::start(script_)] = Moment{};
    if (stuck_) waiter_.assign(moments_.size(), kNobody);
    clock().begin();
    for (std::size_t r = lanes_.size(); r-- > 0;) {
      const auto& events = script_.events(r);
      lanes_[r] = {.release = static_cast<std::uint32_t>(ReceivePosts::first_release(script_, r)),
                   .next = events.data(),
                   .end = events.data() + (Clock::kDrains ? events.size() : script_.drain(r))};
      runnable_.push_back(static_cast<std::uint32_t>(r));
    }
    while (!runnable_.empty()) {
      const std::uint32_t r = runnable_.back();
      runnable_.pop_back();
      Lane& lane = lanes_[r];
      while (lane.next != lane.end && passes(lane, *lane.next, r)) ++lane.next;
    }
    stuck_ =
        std::any_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return lane.next != lane.end; });
    return !stuck_;
  }

  bool passes(Lane& lane, const TransferEvent& event, std::uint32_t r) {
    switch (event.kind) {
      case TransferEvent::Kind::compute:
        clock().compute(r, event.op, lane.now);
        return true;
      case TransferEvent::Kind::release:
        happens(lane.release++, lane.now);
        return true;
      case TransferEvent::Kind::wait_receive:
        return clock().wait_receive(r, event.operand);
      case TransferEvent::Kind::wait_send:
        return clock().wait_send(r, event.operand);
      case TransferEvent::Kind::start_send:
        if (!clock().may_send(r, event.operand)) return false;
        happens(event.operand, clock().arrival(r, event.operand));
        return true;
      case TransferEvent::Kind::meet:
        break;
    }
    return clock().meet(r, event.operand);
  }

  Clock& clock() { return static_cast<Clock&>(*this); }

  const TransferScript& script_;
  ReceivePosts posts_;
  std::size_t first_collective_ = 0;
  std::vector<Lane> lanes_;
  std::vector<std::uint32_t> next_waiter_;  // by rank: who waits for the same
  std::vector<Moment> moments_;             // by condition
  std::vector<std::uint32_t> waiter_;       // by condition: the rank that came last
  std::vector<std::uint32_t> runnable_;
  bool stuck_ = true;  // the last run left ranks that wait
};

/// Under a transport's rules (transport_rules.h). Where an end is missing nobody waits: the checker says so.
class NoClock : public TransferRun<NoClock, std::uint8_t> {
 public:
  /// `script` is all laid. Message sizes are those of `costs`, where the rules ask for them.
  NoClock(const TransferScript& script, const TransportRules& rules, const CostTable* costs);

 private:
  friend TransferRun;
  static constexpr bool kDrains = true;

  void begin() { came_.assign(script().members().size(), 0); }
  bool wait_receive(std::uint32_t rank, std::uint32_t transfer) {
    return script().ends(transfer).sender < 0 || await(rank, transfer);
  }
  bool may_send(std::uint32_t rank, std::uint32_t transfer);
  bool wait_send(std::uint32_t rank, std::uint32_t transfer) {
    return sends_ != TransportRules::Sends::launched || await(rank, posted(transfer));
  }
  bool meet(std::uint32_t rank, std::uint32_t collective);

  TransportRules::Sends sends_;
  /// Eager only: by transfer, its part of those whose posts its send waits for.
  std::vector<std::pair<std::size_t, std::size_t>> room_of_;
  std::vector<std::int32_t> room_;
  std::vector<std::int32_t> came_;  // by collective
};

/// In units of time: a forward and either half of a backward take one tick, a whole backward two, everything
/// else none. Transfers take no time but need a slot: a rank holds on where lowering has it wait for a send
/// whose receive is not posted. Losses are not looked at, they have slots of their own. An end that is
/// missing never comes. 32 bits are enough for all actions of a program one after another.
class TickClock : public TransferRun<TickClock, std::uint32_t> {
 public:
  explicit TickClock(const TransferScript& script)
      : TransferRun(script, ReceivePosts::never(script)), losses_(script.numbers().losses()) {}

  /// Until the last rank is done, with `surplus` slots more a channel than it reads at once; nothing when it
  /// deadlocks.
  [[nodiscard]] std::optional<Moment> time(std::int32_t surplus);
  /// Some action waited for a slot in the last run: with more of them it might be faster.
  [[nodiscard]] bool held_up() const { return held_up_; }

 private:
  friend TransferRun;

  void begin() { held_up_ = false; }
  /// A recompute takes none, so that a program is lowered alike whatever it repeats: the planner, which
  /// chooses what is repeated, carries bounds over from one choice to the other.
  void compute(std::uint32_t, Op op, Moment& now) {
    now += op == Op::backward ? 2U : op == Op::recompute ? 0U : 1U;
  }
  bool wait_receive(std::uint32_t rank, std::uint32_t transfer) {
    return transfer >= losses_ || (reach(rank, transfer) && wait_send(rank, transfer));
  }
  bool wait_send(std::uint32_t rank, std::uint32_t transfer) {
    if (transfer >= losses_) return true;
    const Moment before = now(rank);
    if (!reach(rank, posted(transfer))) return false;
    held_up_ = held_up_ || now(rank) > before;
    return true;
  }

  std::size_t losses_;
  bool held_up_ = false;
};

}  // namespace stagecraft
