#pragma once

// The run where several pairs of ranks share a link. It serves transfers in the order in which
// they became ready, so they must be taken in the order of time, whichever rank they are from:
//   - every rank goes on until it waits for a transfer whose end is not known or for a collective;
//   - when no rank can go on, the transfer that became ready first is taken; of several, the one whose sender
//     has the lowest rank, and of that one the first it started. It begins when both its links have served
//     what they took before.
// That is the order of time, since whatever becomes ready later waits for one of those that are ready now.

#include "schedules/simulator/pass.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <tuple>
#include <vector>

namespace stagecraft::simulator {

class Contention {
 public:
  /// `code` must outlive it. Afterwards nothing is allocated but for a network with more shared links.
  Contention(const Instructions& code, std::size_t ranks) : code_(code), ranks_(ranks) {
    count_instructions();
    lay_out();
    const std::size_t transfers = code.transfer_route.size();
    send_.assign(transfers, kNone);
    next_on_lane_.assign(transfers, kNone);
    after_other_.assign(transfers, false);
    std::vector<std::int32_t> last(code.lanes, kNone);
    for (std::size_t n = 0; n < code.order.size(); ++n) {
      const Instruction& i = code.order[n];
      if (i.kind != Instruction::Kind::send) continue;
      send_[at(i.operand)] = static_cast<std::int32_t>(n);
      std::int32_t& before = last[code.lane_of(i.operand)];
      after_other_[at(i.operand)] = before != kNone;
      if (before != kNone) next_on_lane_[at(before)] = i.operand;
      before = i.operand;
    }
    started_.resize(transfers);
    lane_busy_.resize(transfers);
    cursor_.resize(ranks);
    gathered_.resize(ranks);
    came_.resize(code.collectives.size());
    queued_.resize(ranks);
    runnable_.reserve(ranks);
    ready_.reserve(code.lanes);  // a lane has at most one transfer that is ready
  }

  template <class H>
  void run(const Prices& prices, RunState& state, H& hooks) {
    begin(prices, state);
    Machine<H> machine(code_, prices, state, hooks);
    for (std::size_t r = ranks_; r-- > 0;) wake(static_cast<std::int32_t>(r));
    for (;;) {
      while (!runnable_.empty()) {
        const std::int32_t rank = runnable_.back();
        runnable_.pop_back();
        queued_[at(rank)] = false;
        advance(rank, machine, prices, state);
      }
      if (ready_.empty()) return;
      std::pop_heap(ready_.begin(), ready_.end(), Later{});
      const Ready first = ready_.back();
      ready_.pop_back();
      serve(first.transfer, machine, prices, state);
    }
  }

 private:
  static constexpr std::int32_t kNone = -1;
  static constexpr double kUnknown = std::numeric_limits<double>::infinity();

  struct Ready {
    double time;
    std::int32_t rank, place;  // of its start
    std::int32_t transfer;
  };
  struct Later {
    bool operator()(const Ready& a, const Ready& b) const {
      return std::tie(a.time, a.rank, a.place) > std::tie(b.time, b.rank, b.place);
    }
  };

  [[nodiscard]] const std::vector<Rank>& members(const Instruction& i) const {
    return code_.collectives[at(i.operand)].members;
  }

  template <class Visit>
  void each_on_its_ranks(const Visit& visit) const {
    for (std::size_t n = 0; n < code_.order.size(); ++n) {
      const Instruction& i = code_.order[n];
      if (i.kind == Instruction::Kind::collective) {
        for (const Rank member : members(i)) visit(member.index(), n);
      } else {
        visit(at(i.rank), n);
      }
    }
  }

  void count_instructions() {
    first_.assign(ranks_ + 1, 0);
    each_on_its_ranks([&](std::size_t rank, std::size_t) { ++first_[rank + 1]; });
    for (std::size_t r = 0; r < ranks_; ++r) first_[r + 1] += first_[r];
  }

  void lay_out() {
    list_.resize(first_.back());
    std::vector<std::size_t> next(first_.begin(), first_.end() - 1);
    each_on_its_ranks(
        [&](std::size_t rank, std::size_t n) { list_[next[rank]++] = static_cast<std::int32_t>(n); });
  }

  void begin(const Prices& prices, RunState& state) {
    state.begin();
    std::fill(state.posted.begin(), state.posted.end(), kUnknown);
    std::fill(state.arrived.begin(), state.arrived.end(), kUnknown);
    std::fill(started_.begin(), started_.end(), kUnknown);
    lane_busy_.assign(after_other_.begin(), after_other_.end());
    std::copy(first_.begin(), first_.end() - 1, cursor_.begin());
    std::fill(gathered_.begin(), gathered_.end(), false);
    std::fill(came_.begin(), came_.end(), 0);
    std::fill(queued_.begin(), queued_.end(), false);
    shared_link_free_.assign(prices.shared_link_count, 0.0);
  }

  void wake(std::int32_t rank) {
    if (queued_[at(rank)]) return;
    queued_[at(rank)] = true;
    runnable_.push_back(rank);
  }

  template <class H>
  void advance(std::int32_t rank, Machine<H>& machine, const Prices& prices, RunState& state) {
    for (; cursor_[at(rank)] < first_[at(rank) + 1]; ++cursor_[at(rank)]) {
      const Instruction& i = code_.order[at(list_[cursor_[at(rank)]])];
      switch (i.kind) {
        case Instruction::Kind::compute:
          machine.compute(i);
          break;
        case Instruction::Kind::post:
          machine.post(i);
          enqueue_if_ready(i.operand, machine, prices, state);
          break;
        case Instruction::Kind::send:
          started_[at(i.operand)] = machine.now(i);
          enqueue_if_ready(i.operand, machine, prices, state);
          break;
        case Instruction::Kind::wait:
          if (state.arrived[at(i.operand)] == kUnknown) return;
          machine.wait(i);
          break;
        case Instruction::Kind::join:
          machine.join(i);
          if (++came_[at(i.operand)] == members(i).size()) {
            for (const Rank member : members(i)) wake(member.value);
          }
          break;
        case Instruction::Kind::finish:
          if (came_[at(i.operand)] < members(i).size()) return;
          machine.finish(i);
          break;
        case Instruction::Kind::collective: {
          if (gathered_[at(rank)]) return;
          gathered_[at(rank)] = true;
          if (++came_[at(i.operand)] < members(i).size()) return;
          machine.meet(i);
          for (const Rank member : members(i)) {
            gathered_[member.index()] = false;
            if (member.value == rank) continue;
            ++cursor_[member.index()];
            wake(member.value);
          }
          break;
        }
      }
    }
  }

  /// Start or post of the transfer, or the end of the one before it on its lane, has become known.
  template <class H>
  void enqueue_if_ready(std::int32_t transfer, Machine<H>& machine, const Prices& prices, RunState& state) {
    if (!is_ready(transfer, state)) return;
    if (!shares(transfer, prices)) {
      serve(transfer, machine, prices, state);
      return;
    }
    const Instruction& send = code_.order[at(send_[at(transfer)])];
    ready_.push_back({ready_time(transfer, state), send.rank, send.place, transfer});
    std::push_heap(ready_.begin(), ready_.end(), Later{});
  }

  /// A transfer is ready when it has been started, its receive is posted and the transfers that its sender
  /// started before to the same receiver are over.
  [[nodiscard]] bool is_ready(std::int32_t transfer, const RunState& state) const {
    return started_[at(transfer)] != kUnknown && state.posted[at(transfer)] != kUnknown &&
           !lane_busy_[at(transfer)];
  }

  [[nodiscard]] double ready_time(std::int32_t transfer, const RunState& state) const {
    return std::max(
        {started_[at(transfer)], state.posted[at(transfer)], state.lane_free[code_.lane_of(transfer)]});
  }

  [[nodiscard]] bool shares(std::int32_t transfer, const Prices& prices) const {
    return prices.shared_links[code_.route_number(transfer)].out >= 0;
  }

  /// Carries out a ready transfer, and those behind it on its lane that only waited for it and share nothing.
  template <class H>
  void serve(std::int32_t transfer, Machine<H>& machine, const Prices& prices, RunState& state) {
    for (;;) {
      const Instruction& send = code_.order[at(send_[at(transfer)])];
      const Prices::SharedLinks links = prices.shared_links[code_.route_number(transfer)];
      double begin = ready_time(transfer, state);
      if (links.out >= 0)
        begin = std::max({begin, shared_link_free_[at(links.out)], shared_link_free_[at(links.in)]});
      const double end = machine.send(send, started_[at(transfer)], begin);
      if (links.out >= 0) shared_link_free_[at(links.out)] = shared_link_free_[at(links.in)] = end;
      wake(code_.route_of(transfer).sender.value);
      wake(code_.route_of(transfer).receiver.value);
      const std::int32_t next = next_on_lane_[at(transfer)];
      if (next == kNone) return;
      lane_busy_[at(next)] = false;
      if (shares(next, prices)) {
        enqueue_if_ready(next, machine, prices, state);
        return;
      }
      if (!is_ready(next, state)) return;
      transfer = next;
    }
  }

  const Instructions& code_;
  std::size_t ranks_;
  std::vector<std::size_t> first_;          // per rank into list_, and the end
  std::vector<std::int32_t> list_;          // per rank its instructions, into the order
  std::vector<std::int32_t> send_;          // per transfer its send instruction
  std::vector<std::int32_t> next_on_lane_;  // per transfer
  std::vector<bool> after_other_;           // per transfer: another one stands before it on its lane
  // Of the run under way.
  std::vector<double> started_;  // per transfer
  std::vector<bool> lane_busy_;  // per transfer: the one before it on its lane is not over
  std::vector<double> shared_link_free_;
  std::vector<std::size_t> cursor_;  // per rank
  std::vector<bool> gathered_;       // per rank: stands at a collective and is counted there
  std::vector<std::size_t> came_;    // per collective
  std::vector<bool> queued_;         // per rank
  std::vector<std::int32_t> runnable_;
  std::vector<Ready> ready_;
};

}  // namespace stagecraft::simulator
