#pragma once

// The two ways through a program's instructions. Both keep the same state and follow the same rules; what a
// caller wants beside the clocks (varied times, a timeline, where time is lost) comes in as hooks, resolved
// at compile time, so that the plain run pays for none of them.

#include "schedules/simulator/instructions.h"
#include "schedules/simulator/prices.h"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace stagecraft::simulator {

/// A transfer's moments, seconds.
struct Sending {
  double started, begin, end;
};

/// Hooks that do nothing: inherit and hide what is wanted.
struct Hooks {
  /// What an instruction takes, from its price.
  [[nodiscard]] static double compute_seconds(const Instruction&, double price) { return price; }
  [[nodiscard]] static double transfer_seconds(const Instruction&, double price) { return price; }
  static void computed(const Instruction&, double /*begin*/, double /*end*/) {}
  static void posted(const Instruction&) {}
  /// The rank is the last so far to join a reduction.
  static void joined(const Instruction&) {}
  static void sent(const Instruction&, const Sending&) {}
  static void waited(const Instruction&, double /*begin*/, double /*end*/) {}
  /// `clock` holds for every member when it came; the last one came at `last`.
  static void met(const Collective&, const std::vector<double>& /*clock*/, double /*last*/, double /*end*/) {}
  /// A wait for a reduction that `latest` joined as the last one, at `joined`.
  /// A reduction under way, whoever waits for it.
  static void summed(const Instruction&, double /*joined*/, double /*end*/) {}
  static void reduced(const Instruction&, double /*begin*/, double /*joined*/, Rank /*latest*/,
                      double /*end*/) {}
};

/// Of the run under way, seconds. Sized once for a program.
struct RunState {
  std::vector<double> clock;     // per rank
  std::vector<double> accounts;  // per rank and account
  std::vector<double> posted;    // per transfer
  std::vector<double> arrived;   // per transfer
  std::vector<double> lane_free;
  std::vector<double> joined;  // per collective: the last join
  std::vector<Rank> latest;    // per collective: whose

  RunState(const Instructions& code, std::size_t ranks)
      : clock(ranks),
        accounts(ranks * account_count),
        posted(code.transfer_route.size()),
        arrived(code.transfer_route.size()),
        lane_free(code.lanes),
        joined(code.collectives.size()),
        latest(code.collectives.size()) {}
  /// Posted and arrived are written before they are read.
  void begin() {
    std::fill(clock.begin(), clock.end(), 0.0);
    std::fill(accounts.begin(), accounts.end(), 0.0);
    std::fill(lane_free.begin(), lane_free.end(), 0.0);
    go_on();
  }
  /// Each rank and each lane is where it was beside the others, and the first of the ranks at zero.
  void begin_at_zero() {
    const double first = *std::min_element(clock.begin(), clock.end());
    for (double& time : clock) time -= first;
    for (double& time : lane_free) time -= first;
  }
  /// The same program once more, from where each rank and each lane is.
  void go_on() { std::fill(latest.begin(), latest.end(), Rank{}); }
};

/// What one instruction does to the state.
template <class H>
class Machine {
 public:
  Machine(const Instructions& code, const Prices& prices, RunState& state, H& hooks)
      : code_(code), prices_(prices), state_(state), hooks_(hooks) {}

  [[nodiscard]] double now(const Instruction& i) const { return state_.clock[at(i.rank)]; }

  void compute(const Instruction& i) {
    const double begin = now(i);
    book(i, begin + hooks_.compute_seconds(i, prices_.compute[at(i.operand)]));
    hooks_.computed(i, begin, now(i));
  }

  void post(const Instruction& i) {
    state_.posted[at(i.operand)] = now(i);
    hooks_.posted(i);
  }

  /// Once the transfer's end is known.
  void wait(const Instruction& i) {
    const double begin = now(i);
    const double until = state_.arrived[at(i.operand)];
    if (!(until > begin)) return;
    book(i, until);
    hooks_.waited(i, begin, until);
  }

  /// Carries out a transfer that is ready to begin. Returns its end.
  double send(const Instruction& i, double started, double begin) {
    const double end = begin + hooks_.transfer_seconds(i, prices_.route[code_.route_number(i.operand)]);
    state_.lane_free[code_.lane_of(i.operand)] = end;
    state_.arrived[at(i.operand)] = end;
    hooks_.sent(i, {started, begin, end});
    return end;
  }

  void join(const Instruction& i) {
    double& joined = state_.joined[at(i.operand)];
    Rank& latest = state_.latest[at(i.operand)];
    if (latest.valid() && joined >= now(i)) return;
    joined = now(i);
    latest = Rank{i.rank};
    hooks_.joined(i);
  }

  /// Once all members have joined.
  void finish(const Instruction& i) {
    const double begin = now(i);
    const double joined = state_.joined[at(i.operand)];
    const double end = joined + prices_.collective[at(i.operand)];
    hooks_.summed(i, joined, end);
    if (!(end > begin)) return;
    book(i, end);
    hooks_.reduced(i, begin, joined, state_.latest[at(i.operand)], end);
  }

  /// Once for all members, when all have come.
  void meet(const Instruction& i) {
    const Collective& collective = code_.collectives[at(i.operand)];
    double last = 0;
    for (const Rank member : collective.members) last = std::max(last, state_.clock[member.index()]);
    const double end = last + prices_.collective[at(i.operand)];
    hooks_.met(collective, state_.clock, last, end);
    for (const Rank member : collective.members) {
      double& clock = state_.clock[member.index()];
      state_.accounts[member.index() * account_count + wait_other] += end - clock;
      clock = end;
    }
  }

 private:
  void book(const Instruction& i, double until) {
    double& clock = state_.clock[at(i.rank)];
    state_.accounts[at(i.rank) * account_count + i.account] += until - clock;
    clock = until;
  }

  const Instructions& code_;
  const Prices& prices_;
  RunState& state_;
  H& hooks_;
};

/// Where every pair of ranks has its own links: in topological order every time an instruction needs is known
/// when its turn comes. Goes on from `state`.
template <class H>
void run_in_order(const Instructions& code, const Prices& prices, RunState& state, H& hooks) {
  Machine<H> machine(code, prices, state, hooks);
  for (const Instruction& i : code.order) {
    switch (i.kind) {
      case Instruction::Kind::compute:
        machine.compute(i);
        break;
      case Instruction::Kind::post:
        machine.post(i);
        break;
      case Instruction::Kind::send: {
        const double lane = state.lane_free[code.lane_of(i.operand)];
        machine.send(i, machine.now(i), std::max({machine.now(i), state.posted[at(i.operand)], lane}));
        break;
      }
      case Instruction::Kind::wait:
        machine.wait(i);
        break;
      case Instruction::Kind::collective:
        machine.meet(i);
        break;
      case Instruction::Kind::join:
        machine.join(i);
        break;
      case Instruction::Kind::finish:
        machine.finish(i);
        break;
    }
  }
}

}  // namespace stagecraft::simulator
