#pragma once

// The chain of instructions that the makespan is made of. While a run goes on, every instruction that takes
// time remembers the one whose end it began at; from the last rank's end they lead back to the beginning.

#include "schedules/simulator/pass.h"
#include "schedules/simulator/simulator.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace stagecraft::simulator {

/// For run_in_order: on a shared link a transfer may begin at the end of one that it does not need.
class PathHooks : public Hooks {
 public:
  /// Keeps references to both; `state` is that of the run.
  PathHooks(const Instructions& code, const RunState& state);

  void computed(const Instruction& i, double begin, double end);
  void posted(const Instruction& i);
  void joined(const Instruction& i);
  void sent(const Instruction& i, const Sending& sending);
  void waited(const Instruction& i, double begin, double end);
  void reduced(const Instruction& i, double begin, double joined, Rank latest, double end);
  void met(const Collective& collective, const std::vector<double>& clock, double last, double end);

  /// Behind each of several runs, of which every one goes on from the one before.
  void end_step() { step_ends_.push_back(links_.size()); }

  /// After the run: the chain that ended last.
  [[nodiscard]] CriticalPath longest() const;
  /// After one step that took all ranks equally long, from where they were in step: a chain that leads from the
  /// beginning to the end of one step or more, and comes back to where it began.
  [[nodiscard]] Circuit turn() const;
  /// After several: of the chain that ended last what lies between the beginnings of two steps on one rank. None if
  /// the runs were too few.
  [[nodiscard]] std::optional<Circuit> circuit() const;

 private:
  struct Link {
    enum class Kind : std::uint8_t { compute, transfer, collective };
    Kind kind;
    std::int32_t operand;  ///< price, route or collective
    std::int32_t before;   ///< into links_; -1: nothing
    Rank from;             ///< whose clock it began at; none: a lane's
  };
  std::int32_t add(Link::Kind kind, std::size_t operand, std::int32_t before, Rank from);
  /// From each of `links` back to `first`, which is left out; all together.
  [[nodiscard]] CriticalPath between(std::int32_t first, const std::vector<std::int32_t>& links) const;
  [[nodiscard]] std::int32_t last_link() const;

  const Instructions& code_;
  const RunState& state_;
  std::vector<Link> links_;
  std::vector<std::size_t> step_ends_;  // sizes of links_
  // What the present value of each clock came from, into links_.
  std::vector<std::int32_t> rank_, lane_, posted_, arrived_, joined_;
  std::vector<Rank> joined_by_;
};

}  // namespace stagecraft::simulator
