#pragma once

// A plan's own program, priced again with other costs: what a step would take if stages or links were others
// while the order stayed. Where the order follows the costs (Schedule::orders_by_time), and the plan carries
// none of its own, the program is made again each time.

#include "partitioner/plan/plan.h"
#include "schedules/program/consecutive.h"
#include "schedules/simulator/simulator.h"

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <vector>

namespace stagecraft {

/// A part of a program's longest chain, a step.
struct ChainPart {
  enum class Kind : std::uint8_t { compute, optimizer, link, reduction, agreement, link_queue, tie };
  Kind kind = Kind::compute;
  /// Of a link the later one, of a tied weight the first that holds it; none: an agreement or a queue for
  /// shared links.
  std::optional<StageId> stage;
  std::optional<int> level;
  Seconds seconds;

  [[nodiscard]] bool same_thing(const ChainPart& other) const {
    return kind == other.kind && stage == other.stage && level == other.level;
  }
};

template <>
inline constexpr std::array enum_names<ChainPart::Kind>{"compute",   "optimizer", "link",       "reduction",
                                                        "agreement", "cards",     "tied_weight"};

void describe(auto& v, ChainPart& p) {
  v.required(
      "kind", p.kind,
      "compute, optimizer: of a stage; link: of the boundary into a stage, both ways; reduction: "
      "all-reduce of a stage; agreement: of all ranks on the norm; cards: queueing where ranks share one; "
      "tied_weight: the sum of its gradients over the stages that hold it");
  v.optional("stage", p.stage, "whose it is");
  v.optional("level", p.level, "of a link: which of the cluster's levels, innermost 0");
  v.required("ms", p.seconds, "on the chain, a step");
}

class PlanPricer {
 public:
  /// Requires costs and that the checker accepts the plan, memory apart.
  explicit PlanPricer(const Plan& plan);

  /// To another plan of the same schedule and micro-batches, whose program is made if it is another.
  void turn_to(const Plan& plan);

  [[nodiscard]] Prediction prediction();  ///< with the plan's own costs: predict()
  /// From one step to the next, once steady, as predict() has it.
  [[nodiscard]] Seconds step(const CostTable& costs);
  /// The proven peak per rank.
  [[nodiscard]] std::vector<Bytes> memory(const CostTable& costs);
  /// What a step is made of, largest first; asynchronous: a step's share of a whole segment.
  [[nodiscard]] std::vector<ChainPart> chain(const CostTable& costs);
  /// The mean rank's share of a step (asynchronous: of a segment) by what it is idle for.
  [[nodiscard]] LostTime lost(const CostTable& costs);
  /// Computing, of the mean rank, likewise.
  [[nodiscard]] Seconds busy(const CostTable& costs);

  /// Actions that are simulated for a step's price.
  [[nodiscard]] std::size_t actions() const;
  /// Whether the program is made again for every price.
  [[nodiscard]] bool made_anew() const { return made_anew_; }

 private:
  struct PreparedProgram {
    LoweredProgram program;
    Simulator simulator;
    explicit PreparedProgram(LoweredProgram lowered) : program(std::move(lowered)), simulator(program) {}
  };
  /// A synchronous step so many times, and twice as many times: their difference is steady.
  struct Several {
    Several(const LoweredProgram& step, int its_steps)
        : steps(its_steps), few(repeated(step, its_steps)), more(repeated(step, 2 * its_steps)) {}
    int steps;  ///< of `few`; `more` has twice as many
    PreparedProgram few, more;
  };
  void make();
  void take(const CostTable& costs);
  [[nodiscard]] bool synchronous() const { return programs_.size() == 1; }
  /// Null where each step takes what one alone does, so that one says all; or where steps are not synchronous.
  [[nodiscard]] Several* overlapping(const CostTable& costs);
  /// Runs of `programs_`, valid until the next ones.
  using Runs = std::vector<const Simulation*>;
  [[nodiscard]] Runs run(const CostTable& costs);
  /// What a step has of a figure of the runs.
  template <class Figure>
  [[nodiscard]] Seconds of_step(const Runs& runs, const Figure& figure) const;
  [[nodiscard]] double groups() const { return static_cast<double>(programs_.back().program.groups()); }

  Plan plan_;
  bool made_anew_;
  std::list<PreparedProgram> programs_;  ///< one; asynchronous: one with twice as many groups behind it
  std::unique_ptr<Several> several_;     ///< made when first needed
};

/// What a step takes longer because all ranks agree on the gradient's norm in it and so wait for each other; none for
/// a plan that does not have them agree. Requires what PlanPricer does.
[[nodiscard]] std::optional<Seconds> agreement_cost(const Plan& plan);

}  // namespace stagecraft
