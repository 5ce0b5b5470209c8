#pragma once

// The chain of instructions that the makespan is made of. While a run goes on, every instruction that takes
// time remembers the one whose end it began at; from the last rank's end they lead back to the beginning.

#include "stagecraft/schedules/simulator/pass.h"
#include "stagecraft/schedules/simulator/simulator.h"

#include <cstdint>
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

  /// After the run: the chain that ended last.
  [[nodiscard]] CriticalPath longest() const;
  /// The one at whose end the rank ended.
  [[nodiscard]] CriticalPath to(Rank rank) const;

 private:
  struct Link {
    enum class Kind : std::uint8_t { compute, transfer, collective };
    Kind kind;
    std::int32_t operand;  ///< price, route or collective
    std::int32_t before;   ///< into links_; -1: nothing
  };
  std::int32_t add(Link::Kind kind, std::size_t operand, std::int32_t before);

  const Instructions& code_;
  const RunState& state_;
  std::vector<Link> links_;
  // What the present value of each clock came from, into links_.
  std::vector<std::int32_t> rank_, lane_, posted_, arrived_, joined_;
};

}  // namespace stagecraft::simulator
