// Proof 6: memory. Peak bytes per rank, by the table of what a rank holds (schedules/memory/held.h). The
// same intervals give the curve in pictures.

#include "base/table.h"
#include "schedules/checker/held_bytes.h"
#include "schedules/checker/moments.h"
#include "schedules/checker/proofs.h"
#include "schedules/costs/traffic.h"
#include "schedules/rules/reductions.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <initializer_list>

namespace stagecraft::checker {
namespace {

void add(MemoryProof& amounts, MemoryCategory category, Bytes bytes) {
  constexpr std::array<Bytes MemoryProof::*, kMemoryCategories> kParts{
      &MemoryProof::weights, &MemoryProof::versions,  &MemoryProof::optimizer_state, &MemoryProof::gradients,
      &MemoryProof::kept,    &MemoryProof::transfers, &MemoryProof::transient};
  amounts.*kParts[static_cast<std::size_t>(category)] += bytes;
  amounts.peak += bytes;
}

class RankMemory {
 public:
  RankMemory(const ProgramIndex& index, const CostTable& costs, Rank rank, const MemoryTable& table)
      : index_(index), costs_(costs), rank_(rank), table_(table) {
    fixed_.rank = rank;
    for (const SlotInfo& slot : index_.program().slots[rank_.index()])
      add(fixed_, transfers, payload_bytes(costs_, slot.payload, slot.from, slot.to));
    for (std::size_t h = 0; h < index_.holders().size(); ++h) {
      if (index_.holders()[h].rank == rank_) add_stage(h);
    }
    add_loss_sends();
    add_reductions();
    std::stable_sort(changes_.begin(), changes_.end(),
                     [](const Change& a, const Change& b) { return a.moment < b.moment; });
  }

  [[nodiscard]] MemoryProof proof() const {
    MemoryProof most = fixed_;
    ActionPlace peak{.rank = rank_};
    walk([&](std::size_t here, const MemoryProof& now) {
      if (peak.found() && now.peak <= most.peak) return;
      most = now;
      peak.at = static_cast<std::int32_t>(here);
    });
    if (peak.found()) most.at = index_.name(peak);
    return most;
  }

  [[nodiscard]] HeldBytes curve() const {
    HeldBytes held{rank_, fixed_.peak, {}};
    walk([&](std::size_t, const MemoryProof& now) { held.moments.push_back(now.peak); });
    return held;
  }

 private:
  using enum MemoryCategory;

  struct Change {
    std::int64_t moment;
    MemoryCategory category;
    Bytes bytes;
  };

  [[nodiscard]] const StageCosts& cost(StageId stage) const { return costs_.stages[stage.index()]; }

  void hold(MemoryCategory category, Bytes bytes, std::int64_t from, std::int64_t until) {
    if (bytes.value == 0 || until <= from) return;
    changes_.push_back({from, category, bytes});
    changes_.push_back({until, category, Bytes{} - bytes});
  }

  void add_stage(std::size_t holder) {
    const StageId stage = index_.holders()[holder].stage;
    const StageCosts& c = cost(stage);
    const Situation here{
        .first = stage.value == 0, .last = index_.is_last(stage), .training = index_.trains(stage)};
    each_row(table_.standing, c, here,
             [&](const StandingRow& row, Bytes bytes) { add(fixed_, row.category, bytes * row.times); });
    add(fixed_, versions, c.version() * old_versions(index_, holder));
    for (const MicroBatch mb : index_.micro_batches_of(holder)) add_micro_batch(stage, mb);
  }

  void add_micro_batch(StageId stage, MicroBatch mb) {
    const MicroBatchMoments moments = moments_of(index_, stage, mb);
    each_row(table_.held, cost(stage), moments.here, [&](const HeldRow& row, Bytes bytes) {
      hold(row.category, bytes, end_of(moments[row.from]), end_of(moments[row.until]));
    });
    for (const Skip& skip : index_.program().skips) add_skip(skip, stage, mb);
  }

  /// What the stage makes for a stage that is no neighbour, until it is sent, or used up on this rank.
  void add_skip(const Skip& skip, StageId stage, MicroBatch mb) {
    const bool here = index_.hand_off(skip.from, skip.to, mb);
    const auto add = [&](const Tag& tag, std::int32_t made) {
      const std::int32_t until = here ? last_use(index_, tag.to, mb) : index_.transfer(tag).wait_send.at;
      hold(transfers, costs_.skip(skip.from, skip.to), end_of(made), end_of(until));
    };
    if (skip.from == stage) add(Tag::activation(skip.from, skip.to, mb), index_.work(stage, mb).forward.at);
    if (skip.to == stage && index_.trains(skip.from)) {
      add(Tag::gradient(skip.to, skip.from, mb), index_.work(stage, mb).input_part.at);
    }
  }

  void add_loss_sends() {
    for (const StageReplica& at : index_.holders()) {
      if (!index_.is_last(at.stage) || at.rank != rank_) continue;
      for (int g = 0; g < index_.groups(); ++g) {
        const Transfer& loss = index_.transfer(Tag::loss(at.stage, Group{g}, at.replica));
        if (loss.start.found())
          hold(transfers, costs_.loss, end_of(loss.start.at), end_of(loss.wait_send.at));
      }
    }
  }

  void add_reductions() {
    const auto& list = index_.program().ranks[rank_.index()];
    for (std::int32_t at = 0; at < static_cast<std::int32_t>(list.size()); ++at) {
      const Action& action = list[static_cast<std::size_t>(at)];
      if (action.op != Op::reduce && action.op != Op::tie) continue;
      const std::int32_t join = last_backward_into(index_.program(), list, at);
      hold(transfers, staging(action), begin_of(join < 0 ? at : join), end_of(at));
    }
  }

  [[nodiscard]] Bytes staging(const Action& sum) const {
    const LoweredProgram& program = index_.program();
    if (sum.op == Op::reduce) return sum_staging(cost(sum.stage), program.placement.replicas(sum.stage));
    return tie_staging(costs_.tied(sum.tie), copies_of(program.placement, program.ties[sum.tie.index()]),
                       rank_);
  }

  [[nodiscard]] Bytes transient_of(const Action& action) const {
    if (action.op == Op::step) return stagecraft::transient(cost(action.stage), action.op, false);
    if (!is_compute(action.op)) return {};
    return stagecraft::transient(cost(action.stage), action.op,
                                 index_.keeps_nothing(action.stage, action.micro_batch));
  }

  /// Calls `visit(index, amounts)` twice per action: while it runs, and when it has ended.
  template <class Visit>
  void walk(const Visit& visit) const {
    MemoryProof now = fixed_;
    auto next = changes_.begin();
    const auto apply = [&](std::int64_t moment) {
      for (; next != changes_.end() && next->moment == moment; ++next) add(now, next->category, next->bytes);
    };
    const auto& list = index_.program().ranks[rank_.index()];
    for (std::size_t i = 0; i < list.size(); ++i) {
      const auto at = static_cast<std::int32_t>(i);
      apply(begin_of(at));
      const Bytes above = transient_of(list[i]);
      add(now, MemoryCategory::transient, above);
      visit(i, now);
      add(now, MemoryCategory::transient, Bytes{} - above);
      apply(end_of(at));
      visit(i, now);
    }
  }

  const ProgramIndex& index_;
  const CostTable& costs_;
  Rank rank_;
  MemoryTable table_;
  MemoryProof fixed_;  // for the whole segment
  std::vector<Change> changes_;
};

bool costs_well_formed(const ProgramIndex& index, const CostTable& costs, Findings& findings) {
  constexpr auto kind = Finding::Kind::memory;
  if (costs.stages.size() != static_cast<std::size_t>(index.stages())) {
    findings.add(kind, fmt::format("the program has {} stages, but the cost table has {}", index.stages(),
                                   costs.stages.size()));
    return false;
  }
  const std::size_t ties = index.program().ties.size();
  if (ties > 0 && !costs.ties.empty() && costs.ties.size() != ties) {  // a validation has none
    findings.add(kind, fmt::format("the program has {} tied weights, but the cost table has {}", ties,
                                   costs.ties.size()));
    return false;
  }
  // What one rank may hold of either at once, a few tensors a time, still fits 64 bits.
  constexpr Bytes kMostHeld{std::int64_t{1} << 59U};
  const auto most_of = [&](Bytes most, int times) {
    return std::min(most, Bytes{kMostHeld.value / times / index.stages()});
  };
  const Bytes most_activation = most_of(kMostActivationBytes, index.micro_batches());
  const Bytes most_weight = most_of(kMostWeightBytes, index.groups());
  for (const Bytes bytes : costs.ties) {
    if (bytes >= Bytes{0} && bytes <= most_weight) continue;
    findings.add(kind, fmt::format("the cost table has {} bytes for a tied weight; expected 0 to {}",
                                   bytes.value, most_weight.value));
    return false;
  }
  for (const SkipCosts& skip : costs.skips) {
    if (skip.bytes >= Bytes{0} && skip.bytes <= most_activation) continue;
    findings.add(kind, fmt::format("the cost table has {} bytes for a skip; expected 0 to {}",
                                   skip.bytes.value, most_activation.value));
    return false;
  }
  for (std::size_t s = 0; s < costs.stages.size(); ++s) {
    const StageCosts& c = costs.stages[s];
    const auto possible = [&](std::initializer_list<Bytes> all, Bytes most) {
      const auto found =
          std::find_if(all.begin(), all.end(), [&](Bytes bytes) { return bytes < Bytes{0} || bytes > most; });
      if (found == all.end()) return true;
      findings.add(kind, fmt::format("the cost table has {} bytes for stage {}; expected 0 to {}",
                                     found->value, s, most.value));
      return false;
    };
    if (!possible({c.parameters, c.compute_copy, c.buffers, c.optimizer_state}, most_weight) ||
        !possible({c.input, c.read, c.output, c.targets, c.fields, c.kept_for_input, c.kept_for_weight,
                   c.forward_peak, c.unkept_peak(), c.backward_peak, c.input_half_peak(),
                   c.weight_half_peak(), c.step_peak.value_or(Bytes{}), costs.loss},
                  most_activation)) {
      return false;
    }
  }
  return true;
}

}  // namespace

std::vector<MemoryProof> prove_memory(const ProgramIndex& index, const CostTable& costs,
                                      std::optional<Bytes> capacity, Findings& findings) {
  if (!costs_well_formed(index, costs, findings)) return {};
  std::vector<MemoryProof> proofs;
  for (int r = 0; r < index.world(); ++r) {
    proofs.push_back(RankMemory(index, costs, Rank{r}, kMemoryTable).proof());
    const MemoryProof& proof = proofs.back();
    if (!capacity || proof.peak <= *capacity) continue;
    findings.add(Finding::Kind::memory,
                 fmt::format("rank {} needs {}, {} more than the {} it has; the peak is at {}", r,
                             format_bytes(proof.peak), format_bytes(proof.peak - *capacity),
                             format_bytes(*capacity), proof.at));
  }
  return proofs;
}

}  // namespace stagecraft::checker

namespace stagecraft {

std::vector<HeldBytes> held_bytes(const LoweredProgram& program, const CostTable& costs,
                                  const MemoryTable& table) {
  checker::Findings findings;
  STAGECRAFT_CHECK(checker::well_formed(program, findings), "the program was not accepted by the checker");
  const checker::ProgramIndex index(program, findings);
  STAGECRAFT_CHECK(checker::costs_well_formed(index, costs, findings) && !findings.any(),
                   "the program was not accepted by the checker with these costs");
  std::vector<HeldBytes> held;
  for (int r = 0; r < index.world(); ++r) {
    held.push_back(checker::RankMemory(index, costs, Rank{r}, table).curve());
  }
  return held;
}

}  // namespace stagecraft
