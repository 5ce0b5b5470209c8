// Proof 2: matching. Every transfer has its four ends, each once and in order; every communicator sees its
// collectives in one order on all members.

#include "schedules/checker/proofs.h"

#include <fmt/format.h>

#include <map>
#include <utility>

namespace stagecraft::checker {
namespace {

class Matching : ProofOf {
 public:
  Matching(const ProgramIndex& index, Findings& findings)
      : ProofOf(Finding::Kind::matching, index, findings) {}

  void run() {
    for (const Transfer& transfer : index_.transfers()) {
      if (findings_.full()) return;
      if (first_of(transfer).found()) check_transfer(transfer);
    }
    check_collectives();
  }

 private:
  void check_transfer(const Transfer& t) {
    const ActionPlace some = first_of(t);
    const auto need = [&](ActionPlace end, const char* what) {
      if (!end.found()) add(fmt::format("{}: this transfer has no {}", index_.name(some), what));
    };
    need(t.post, "post_receive");
    need(t.wait, "wait_receive");
    need(t.start, "start_send");
    need(t.wait_send, "wait_send");
    const auto ordered = [&](ActionPlace first, ActionPlace second) {
      if (!first.found() || !second.found() || first.before(second)) return;
      add(fmt::format("{}: must come after {}", index_.name(second), index_.name(first)));
    };
    ordered(t.post, t.wait);
    ordered(t.start, t.wait_send);
  }

  static ActionPlace first_of(const Transfer& t) {
    for (const ActionPlace place : {t.start, t.post, t.wait, t.wait_send}) {
      if (place.found()) return place;
    }
    return {};
  }

  /// Reductions of a stage among its replicas, sums of a tied weight among its holders, norm agreements among
  /// all ranks.
  void check_collectives() {
    using Sequence = std::vector<ActionPlace>;
    using Kind = std::pair<StageId, TieId>;  // both "none": agreements
    const LoweredProgram& program = index_.program();
    std::map<Kind, std::vector<Sequence>> orders;  // by member
    for (std::size_t r = 0; r < program.ranks.size(); ++r) {
      std::map<Kind, Sequence> mine{{Kind{}, {}}};
      for (const StageId stage : program.placement.stages_of(Rank{r})) {
        mine[{stage, {}}];
        for (const TieId tie : index_.ties_of(stage)) mine[{{}, tie}];
      }
      const auto& list = program.ranks[r];
      for (std::size_t i = 0; i < list.size(); ++i) {
        const ActionPlace here{Rank{r}, static_cast<std::int32_t>(i)};
        if (list[i].op == Op::agree_norm || list[i].op == Op::reduce || list[i].op == Op::tie)
          mine[{list[i].stage, list[i].tie}].push_back(here);
      }
      for (auto& [kind, sequence] : mine) orders[kind].push_back(std::move(sequence));
    }
    for (const auto& [kind, members] : orders) {
      for (std::size_t m = 1; m < members.size() && !findings_.full(); ++m) compare(members[0], members[m]);
    }
  }

  void compare(const std::vector<ActionPlace>& first, const std::vector<ActionPlace>& other) {
    for (std::size_t i = 0; i < first.size() || i < other.size(); ++i) {
      if (i >= first.size()) return add(index_.name(other[i]) + ": another member has no such collective");
      if (i >= other.size()) return add(index_.name(first[i]) + ": another member has no such collective");
      if (index_.action(first[i]).group == index_.action(other[i]).group) continue;
      return add(fmt::format("{} meets {}; the order must be the same on all members", index_.name(first[i]),
                             index_.name(other[i])));
    }
  }
};

}  // namespace

void prove_matching(const ProgramIndex& index, Findings& findings) { Matching(index, findings).run(); }

}  // namespace stagecraft::checker
