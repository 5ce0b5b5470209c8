// Memory: peak bytes a rank, in requested tensor bytes. This is the contract that the engine's measured
// memory is compared with. What a rank holds
//
// for the whole segment:
//   weights          parameters, their compute copy and buffers of every stage it holds (the current version)
//   optimizer_state  of every stage it holds
//   gradients        one accumulation, as large as the parameters, of every stage it holds; training only
//   versions         compute copies (parameters, where there are none) of every stage it holds, times the
//                    older versions alive at once at most. A
//                    step whose source version is still read later copies once, into a ring that keeps its
//                    memory; one whose source is read no more updates in place
//   transfers        every receive slot of its table: of an activation the receiving stage's `input`, of a
//                    gradient its `output`, of a loss `CostTable::loss`
//   kept             data read ahead: kReadAhead micro-batches of `input` and one of `read` (stage 0), and
//                    kReadAhead of `targets` (last stage)
//
// for a while, from the end of the first action named to the end of the second:
//   kept       `input` of stage 0, load to backward
//              `targets` of the last stage, load to backward (input part)
//              `kept_for_input`, forward to backward. Split: to the input part, and then `kept_for_weight` to
//              the weight part. Recomputed: from the recompute instead of the forward
//              `output`, handed over on the same rank: forward to the next stage's backward
//              `output` with `output_kept`: to the stage's own backward's input part (recomputed: from the
//              recompute)
//   transfers  `output` on its way: forward to wait_send
//              the gradient of the input (`input`, stages > 0): backward (input part) to wait_send, or,
//              handed over on the same rank, to the previous stage's backward a loss: start_send to wait_send
//              `reduce_staging` (reductions.h), what sums over replicas need beside the gradients: from the
//              *beginning* of the backward at which the rank joins the sum to the reduce
//
// during one action, above all that:
//   transient  `forward_peak` during forward and recompute (`unkept_forward_peak` during a forward that is
//              recomputed later, which keeps nothing), `backward_peak` during backward, the half's own peak
//              during each half of a split one
//
// "Backward" alone means its last part (the weight part, where split). In validation nothing is kept: the
// data lives to its forward, a handed-over output to the next stage's. An output under way and kept counts
// once, as under way until it is sent; a recomputed one is another. The last stage's output is not a
// boundary. A micro-batch shorter than the others counts as a full one.

#include "schedules/base/table.h"
#include "schedules/checker/proofs.h"
#include "schedules/held_bytes.h"
#include "schedules/reductions.h"
#include "schedules/segments.h"
#include "schedules/traffic.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <initializer_list>

namespace stagecraft::checker {
namespace {

enum Category : std::uint8_t { kept, transfers, transient, categories };
using Amounts = std::array<std::int64_t, categories>;

std::int64_t sum(const Amounts& amounts) { return amounts[kept] + amounts[transfers] + amounts[transient]; }

class RankMemory {
 public:
  RankMemory(const Subject& subject, const CostTable& costs, Rank rank)
      : subject_(subject), costs_(costs), rank_(rank) {
    proof_.rank = rank;
  }

  MemoryProof run() {
    add_everything();
    find_peak();
    return proof_;
  }

  HeldBytes held() {
    add_everything();
    HeldBytes held{rank_, fixed(), {}};
    walk([&](std::size_t, const Amounts& now) { held.moments.push_back(fixed() + Bytes{sum(now)}); });
    return held;
  }

 private:
  struct Change {
    std::int64_t moment;
    Category category;
    std::int64_t bytes;
  };

  [[nodiscard]] const StageCosts& cost(StageId stage) const { return costs_.stages[stage.index()]; }

  /// Moments of an action: changes take effect when it begins, before it is looked at, and when it ends.
  static std::int64_t begin_of(std::int32_t at) { return std::int64_t{2} * at; }
  static std::int64_t end_of(std::int32_t at) { return begin_of(at) + 1; }

  void change(Category category, Bytes bytes, std::int64_t from, std::int64_t until) {
    if (bytes.value == 0 || until <= from) return;
    changes_.push_back({from, category, bytes.value});
    changes_.push_back({until, category, -bytes.value});
  }

  /// From the end of one action to the end of another.
  void alive(Category category, Bytes bytes, std::int32_t from, std::int32_t until) {
    change(category, bytes, end_of(from), end_of(until));
  }

  void add_everything() {
    add_slots();
    for (std::size_t h = 0; h < subject_.holders().size(); ++h) {
      if (subject_.holders()[h].rank == rank_) add_stage(h);
    }
    add_loss_sends();
    add_reductions();
  }

  void add_slots() {
    for (const SlotInfo& slot : subject_.program().slots[rank_.index()]) {
      slots_ += payload_bytes(costs_, slot.payload, slot.to);
    }
  }

  void add_stage(std::size_t holder) {
    const StageId stage = subject_.holders()[holder].stage;
    const StageCosts& c = cost(stage);
    proof_.weights += c.weights() + c.buffers;
    proof_.optimizer_state += c.optimizer_state;
    if (subject_.train()) proof_.gradients += c.parameters;
    proof_.versions += c.version() * old_versions(subject_, holder);
    if (stage.value == 0) read_ahead_ += c.input * kReadAhead + c.read;
    if (subject_.is_last(stage)) read_ahead_ += c.targets * kReadAhead;
    for (const MicroBatch mb : subject_.micro_batches_of(holder)) add_micro_batch(stage, mb);
  }

  void add_micro_batch(StageId stage, MicroBatch mb) {
    const StageCosts& c = cost(stage);
    const Work& work = subject_.work(stage, mb);
    const std::int32_t end = last_use(work);
    if (stage.value == 0) alive(kept, c.input, subject_.load(stage, mb).at, end);
    if (subject_.is_last(stage)) {
      const Place gone = subject_.train() ? work.input_part : work.forward;
      alive(kept, c.targets, subject_.load(stage, mb).at, gone.at);
    }
    if (!subject_.is_last(stage)) add_output(stage, mb, work);
    if (!subject_.train()) return;
    const std::int32_t begin = (work.recompute.found() ? work.recompute : work.forward).at;
    alive(kept, c.kept_for_input, begin, work.input_part.at);
    alive(kept, c.kept_for_weight, work.input_part.at, work.weight_part.at);
    if (stage.value > 0) add_input_gradient(stage, mb, work);
  }

  /// Where the stage is done with a micro-batch.
  [[nodiscard]] std::int32_t last_use(const Work& work) const {
    return (subject_.train() ? work.weight_part : work.forward).at;
  }

  void add_output(StageId stage, MicroBatch mb, const Work& work) {
    const StageCosts& c = cost(stage);
    const StageId next{stage.value + 1};
    const Place made = work.forward;
    std::int32_t gone = 0;
    if (subject_.hand_off(stage, next, mb)) {
      gone = last_use(subject_.work(next, mb));
      alive(kept, c.output, made.at, gone);
    } else {
      gone = subject_.transfer({Payload::activation, stage, next, mb, 0}).wait_send.at;
      alive(transfers, c.output, made.at, gone);
    }
    if (!c.output_kept || !subject_.train()) return;
    // A recompute makes another one, whether the first has gone or not.
    const std::int32_t begin = work.recompute.found() ? work.recompute.at : std::max(made.at, gone);
    alive(kept, c.output, begin, work.input_part.at);
  }

  void add_input_gradient(StageId stage, MicroBatch mb, const Work& work) {
    const StageId previous{stage.value - 1};
    const std::int32_t gone =
        subject_.hand_off(stage, previous, mb)
            ? last_use(subject_.work(previous, mb))
            : subject_.transfer({Payload::gradient, stage, previous, mb, 0}).wait_send.at;
    alive(transfers, cost(stage).input, work.input_part.at, gone);
  }

  void add_loss_sends() {
    const StageId last{subject_.stages() - 1};
    const auto& reporters = subject_.program().placement.ranks[last.index()];
    for (std::size_t replica = 0; replica < reporters.size(); ++replica) {
      if (reporters[replica] != rank_) continue;
      for (int g = 0; g < subject_.groups(); ++g) {
        const Transfer& loss = subject_.transfer(
            {Payload::loss, last, StageId{0}, MicroBatch{g}, static_cast<std::int32_t>(replica)});
        if (loss.start.found()) alive(transfers, costs_.loss, loss.start.at, loss.wait_send.at);
      }
    }
  }

  void add_reductions() {
    const auto& list = subject_.program().ranks[rank_.index()];
    for (std::int32_t at = 0; at < static_cast<std::int32_t>(list.size()); ++at) {
      const Action& action = list[static_cast<std::size_t>(at)];
      if (action.op != Op::reduce) continue;
      const std::int32_t join = joins_at(list, at);
      const Bytes summed = cost(action.stage).parameters + cost(action.stage).buffers;
      change(transfers, reduce_staging(summed, subject_.program().placement.width(action.stage)),
             begin_of(join < 0 ? at : join), end_of(at));
    }
  }

  [[nodiscard]] std::int64_t transient_of(const Action& action) const {
    switch (action.op) {
      case Op::forward:
        if (subject_.work(action.stage, action.micro_batch).recompute.found())
          return cost(action.stage).unkept_peak().value;
        return cost(action.stage).forward_peak.value;
      case Op::recompute:
        return cost(action.stage).forward_peak.value;
      case Op::backward:
        return cost(action.stage).backward_peak.value;
      case Op::backward_input:
        return cost(action.stage).input_half_peak().value;
      case Op::backward_weight:
        return cost(action.stage).weight_half_peak().value;
      default:
        return 0;
    }
  }

  /// Calls `visit(index, amounts)` twice an action, with what is held above the fixed parts: while it runs,
  /// and when it has ended.
  template <class Visit>
  void walk(const Visit& visit) {
    std::stable_sort(changes_.begin(), changes_.end(),
                     [](const Change& a, const Change& b) { return a.moment < b.moment; });
    Amounts now{};
    std::size_t next = 0;
    const auto apply = [&](std::int64_t moment) {
      for (; next < changes_.size() && changes_[next].moment == moment; ++next) {
        now[changes_[next].category] += changes_[next].bytes;
      }
    };
    const auto& list = subject_.program().ranks[rank_.index()];
    for (std::size_t i = 0; i < list.size(); ++i) {
      const auto at = static_cast<std::int32_t>(i);
      apply(begin_of(at));
      now[transient] = transient_of(list[i]);
      visit(i, now);
      now[transient] = 0;
      apply(end_of(at));
      visit(i, now);
    }
  }

  void find_peak() {
    Amounts most{};
    std::int32_t at = -1;
    walk([&](std::size_t here, const Amounts& now) {
      if (at >= 0 && sum(now) <= sum(most)) return;
      most = now;
      at = static_cast<std::int32_t>(here);
    });
    proof_.kept = read_ahead_ + Bytes{most[kept]};
    proof_.transfers = slots_ + Bytes{most[transfers]};
    proof_.transient = Bytes{most[transient]};
    proof_.peak = fixed() + Bytes{sum(most)};
    if (at >= 0) proof_.at = subject_.name({rank_.value, at});
  }

  /// What is held for the whole segment.
  [[nodiscard]] Bytes fixed() const {
    return proof_.weights + proof_.versions + proof_.optimizer_state + proof_.gradients + slots_ +
           read_ahead_;
  }

  const Subject& subject_;
  const CostTable& costs_;
  Rank rank_;
  MemoryProof proof_;
  Bytes slots_;
  Bytes read_ahead_;
  std::vector<Change> changes_;
};

bool costs_well_formed(const Subject& subject, const CostTable& costs, Findings& findings) {
  constexpr auto kind = Finding::Kind::memory;
  if (costs.stages.size() != static_cast<std::size_t>(subject.stages())) {
    findings.add(kind, fmt::format("the program has {} stages, but the cost table has {}", subject.stages(),
                                   costs.stages.size()));
    return false;
  }
  // What one rank may hold of either at once, a few tensors a time, still fits 64 bits.
  constexpr Bytes kMostHeld{std::int64_t{1} << 59U};
  const auto most_of = [&](Bytes most, int times) {
    return std::min(most, Bytes{kMostHeld.value / times / subject.stages()});
  };
  const Bytes most_activation = most_of(kMostActivationBytes, subject.micro_batches());
  const Bytes most_weight = most_of(kMostWeightBytes, subject.groups());
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
        !possible({c.input, c.read, c.output, c.targets, c.kept_for_input, c.kept_for_weight, c.forward_peak,
                   c.unkept_peak(), c.backward_peak, c.input_half_peak(), c.weight_half_peak(), costs.loss},
                  most_activation)) {
      return false;
    }
  }
  return true;
}

}  // namespace

std::vector<MemoryProof> prove_memory(const Subject& subject, const CostTable& costs,
                                      std::optional<Bytes> capacity, Findings& findings) {
  if (!costs_well_formed(subject, costs, findings)) return {};
  std::vector<MemoryProof> proofs;
  for (int r = 0; r < subject.world(); ++r) {
    proofs.push_back(RankMemory(subject, costs, Rank{r}).run());
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

std::vector<HeldBytes> held_bytes(const LoweredProgram& program, const CostTable& costs) {
  checker::Findings findings;
  STAGECRAFT_CHECK(checker::well_formed(program, findings), "the program was not accepted by the checker");
  const checker::Subject subject(program, findings);
  STAGECRAFT_CHECK(checker::costs_well_formed(subject, costs, findings) && !findings.any(),
                   "the program was not accepted by the checker with these costs");
  std::vector<HeldBytes> held;
  for (int r = 0; r < subject.world(); ++r) {
    held.push_back(checker::RankMemory(subject, costs, Rank{r}).held());
  }
  return held;
}

}  // namespace stagecraft
