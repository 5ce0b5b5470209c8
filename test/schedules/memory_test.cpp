// The memory proof against small cases done by hand, and against a ledger that walks a rank's list as the
// engine does: tensors come and go one by one, and the most there ever was is the peak.

#include "schedules/checker/checker.h"
#include "schedules/checker/held_bytes.h"
#include "schedules/checker/proofs.h"
#include "schedules/generators/registry.h"
#include "schedules/lowering/lowering.h"
#include "schedules/program/program_text.h"
#include "schedules/program/segments.h"
#include "test/schedules/program_grid.h"
#include "test/support/catch.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

namespace stagecraft {
namespace {

/// All different, so that a mix-up shows.
StageCosts costs_of(int stage, int stages) {
  const auto bytes = [&](int n) { return Bytes{n + stage * 7}; };
  StageCosts c;
  c.parameters = bytes(100'000);
  c.buffers = bytes(1'000);
  c.optimizer_state = bytes(300'000);
  c.input = Bytes{stage == 0 ? 3'000 : 5'000 + (stage - 1) * 11};
  c.output = Bytes{stage + 1 == stages ? 0 : 5'000 + stage * 11};  // the next stage's input
  c.targets = Bytes{stage + 1 == stages ? 700 : 0};
  c.fields = bytes(450);
  c.kept_for_input = bytes(20'000);
  c.kept_for_weight = bytes(9'000);
  c.output_kept = stage % 2 == 1;
  c.forward_peak = bytes(31'000);
  c.unkept_forward_peak = bytes(12'000);
  c.backward_peak = bytes(27'000);
  c.backward_input_peak = bytes(33'000);
  c.backward_weight_peak = bytes(12'000);
  return c;
}

CostTable costs_for(int stages) {
  CostTable costs;
  for (int s = 0; s < stages; ++s) costs.stages.push_back(costs_of(s, stages));
  return costs;
}

/// One rank's tensors, by name, as its list is carried out.
class Ledger {
 public:
  Ledger(const LoweredProgram& program, const CostTable& costs, const Proof& proof, Rank rank)
      : program_(program), costs_(costs), rank_(rank) {
    const bool train = program.kind == SegmentKind::train;
    for (const StageId s : program.placement.stages_of(rank)) {
      const StageCosts& c = cost(s);
      fixed_ += (c.parameters + c.compute_copy + c.buffers + c.optimizer_state).value;
      fixed_ += (train && !frozen(s) ? c.parameters.value : 0) + (s.value == 0 ? c.read.value : 0);
      fixed_ += kReadAhead *
                ((s.value == 0 ? c.input.value : 0) + (last(s) ? c.targets.value : 0) + c.fields.value);
    }
    for (const StageProof& stage : proof.stages) {
      const StageCosts& c = cost(stage.stage);
      const Bytes version = c.compute_copy.value > 0 ? c.compute_copy : c.parameters;
      if (stage.rank == rank) fixed_ += version.value * (stage.versions_alive - 1);
    }
    for (const SlotInfo& slot : program.slots[rank.index()]) {
      fixed_ += slot.payload == Payload::loss         ? costs.loss.value
                : slot.payload == Payload::activation ? cost(slot.to).input.value
                                                      : cost(slot.to).output.value;
    }
    for (const Action& a : program.ranks[rank.index()]) {
      if (a.op == Op::recompute) recomputed_.insert({a.stage, a.micro_batch});
      if (adds_gradients(a)) ++to_come_[{a.stage, a.group}];
    }
    peak_ = fixed_;
    for (const Action& a : program.ranks[rank.index()]) {
      carry_out(a);
      ++here_;
    }
  }

  [[nodiscard]] std::int64_t peak() const { return peak_; }
  /// Two an action: while it runs, and when it has ended.
  [[nodiscard]] const std::vector<std::int64_t>& moments() const { return moments_; }
  /// The first action at which it is reached, as the proof names it.
  [[nodiscard]] std::string at() const {
    const auto& list = program_.ranks[rank_.index()];
    if (list.empty()) return "";
    return fmt::format("rank {} [{}] {}", rank_.value, peak_at_, describe_action(list[peak_at_]));
  }
  [[nodiscard]] bool empty() const { return tensors_.empty(); }

 private:
  enum class What {
    data,
    targets,
    fields,
    kept,
    weight_part,
    output,
    output_again,
    gradient,
    loss,
    reduction
  };
  using Key = std::tuple<What, StageId, MicroBatch>;

  [[nodiscard]] const StageCosts& cost(StageId s) const { return costs_.stages[s.index()]; }
  void make(What what, StageId s, MicroBatch mb, Bytes bytes) { tensors_[{what, s, mb}] = bytes.value; }
  void drop(What what, StageId s, MicroBatch mb) { tensors_.erase({what, s, mb}); }
  [[nodiscard]] bool here(StageId s, MicroBatch mb) const {
    return program_.placement.rank_of(s, mb) == rank_;
  }

  void note(std::int64_t transient) {
    std::int64_t now = fixed_ + transient;
    for (const auto& [key, bytes] : tensors_) now += bytes;
    moments_.push_back(now);
    if (now <= peak_) return;
    peak_ = now;
    peak_at_ = here_;
  }

  [[nodiscard]] static bool adds_gradients(const Action& a) {
    return a.op == Op::backward || a.op == Op::backward_weight;
  }

  /// A sum over replicas begins with the last backward into its group, if there is any, before it ends in its
  /// reduce.
  void join_reduction(const Action& a) {
    const std::int64_t replicas = program_.placement.replicas(a.stage);
    if (replicas == 1) return;
    if (a.op != Op::reduce && (!adds_gradients(a) || --to_come_[{a.stage, a.group}] > 0)) return;
    const std::int64_t all = cost(a.stage).parameters.value + cost(a.stage).buffers.value;
    // Everybody else's of the own part: all but one part of so many; and copies of small tensors.
    const std::int64_t staged = all - all / replicas + std::min(all, std::int64_t{256} << 10U);
    const std::int64_t rounding = 8 * (replicas - 1) + 64;
    make(What::reduction, a.stage, {}, Bytes{std::min(std::int64_t{16} << 20U, staged + rounding)});
  }

  [[nodiscard]] std::int64_t transient(const Action& a) const {
    if (!is_compute(a.op)) return 0;
    const StageCosts& c = cost(a.stage);
    const bool again_later = a.op == Op::forward && recomputed_.contains({a.stage, a.micro_batch});
    const bool keeps_nothing = again_later || (frozen(a.stage) && program_.kind == SegmentKind::train);
    if (keeps_nothing) return c.unkept_forward_peak->value;
    if (a.op == Op::forward || a.op == Op::recompute) return c.forward_peak.value;
    if (a.op == Op::backward) return c.backward_peak.value;
    return (a.op == Op::backward_input ? c.backward_input_peak : c.backward_weight_peak)->value;
  }

  void carry_out(const Action& a) {
    const StageId s = a.stage;
    const MicroBatch mb = a.micro_batch;
    if (a.stage.valid()) join_reduction(a);
    note(transient(a));
    switch (a.op) {
      case Op::reduce:
        drop(What::reduction, s, {});
        break;
      case Op::load:
        if (s.value == 0) make(What::data, s, mb, cost(s).input);
        if (last(s)) make(What::targets, s, mb, cost(s).targets);
        make(What::fields, s, mb, cost(s).fields);
        break;
      case Op::forward:
        forward(s, mb);
        break;
      case Op::recompute:
        make(What::kept, s, mb, cost(s).kept_for_input);
        if (cost(s).output_kept && !last(s)) make(What::output_again, s, mb, cost(s).output);
        break;
      case Op::backward:
      case Op::backward_input:
        drop(What::kept, s, mb);
        drop(What::targets, s, mb);
        output_read_.insert({s, mb});
        drop(What::output_again, s, mb);
        drop_output(s, mb);
        if (a.op == Op::backward_input) make(What::weight_part, s, mb, cost(s).kept_for_weight);
        if (s.value > 0 && !frozen(StageId{s.value - 1})) make(What::gradient, s, mb, cost(s).input);
        if (a.op == Op::backward) done(s, mb);
        break;
      case Op::backward_weight:
        done(s, mb);
        break;
      case Op::start_send:
        if (a.tag.is_loss()) make(What::loss, a.tag.from, MicroBatch{a.tag.number}, costs_.loss);
        break;
      case Op::wait_send:
        sent(a.tag);
        break;
      default:
        break;
    }
    note(0);
  }

  [[nodiscard]] bool frozen(StageId s) const { return s.value < program_.gradient_from.value; }
  [[nodiscard]] bool last(StageId s) const { return s.value + 1 == program_.placement.stages(); }

  void forward(StageId s, MicroBatch mb) {
    if (!last(s)) make(What::output, s, mb, cost(s).output);
    if (program_.kind == SegmentKind::validate || frozen(s)) return done(s, mb);
    // A stage that does not load has none; the proof counts what its costs say from the forward on.
    if (!program_.loads(s)) make(What::fields, s, mb, cost(s).fields);
    if (!recomputed_.contains({s, mb})) make(What::kept, s, mb, cost(s).kept_for_input);
  }

  /// The stage needs nothing of the micro-batch any more.
  void done(StageId s, MicroBatch mb) {
    finished_.insert({s, mb});
    drop(What::data, s, mb);
    drop(What::targets, s, mb);
    drop(What::fields, s, mb);
    drop(What::weight_part, s, mb);
    if (s.value > 0) drop_output(StageId{s.value - 1}, mb);
    if (!last(s) && here(StageId{s.value + 1}, mb)) drop(What::gradient, StageId{s.value + 1}, mb);
  }

  /// Where neither its reader nor its maker has a use for it any more.
  void drop_output(StageId s, MicroBatch mb) {
    if (last(s) || !here(s, mb)) return;
    const StageId next{s.value + 1};
    const bool read = here(next, mb) ? finished_.contains({next, mb}) : sent_.contains({s, mb});
    const bool kept = cost(s).output_kept && program_.kind == SegmentKind::train && !frozen(s) &&
                      !recomputed_.contains({s, mb}) && !output_read_.contains({s, mb});
    if (read && !kept) drop(What::output, s, mb);
  }

  void sent(const Tag& tag) {
    if (tag.is_loss()) return drop(What::loss, tag.from, MicroBatch{tag.number});
    if (tag.payload == Payload::gradient) return drop(What::gradient, tag.from, tag.micro_batch());
    sent_.insert({tag.from, tag.micro_batch()});
    drop_output(tag.from, tag.micro_batch());
  }

  using Work = std::pair<StageId, MicroBatch>;
  const LoweredProgram& program_;
  const CostTable& costs_;
  Rank rank_;
  std::int64_t fixed_ = 0;
  std::int64_t peak_ = 0;
  std::vector<std::int64_t> moments_;
  std::size_t here_ = 0;
  std::size_t peak_at_ = 0;
  std::map<Key, std::int64_t> tensors_;
  std::set<Work> recomputed_;  ///< to be recomputed yet
  std::set<Work> output_read_, finished_, sent_;
  std::map<std::pair<StageId, Group>, int> to_come_;  ///< gradients that the rank adds
};

LoweredProgram lowered(const char* schedule, const Placement& placement, const std::vector<int>& groups) {
  return lower(find_schedule(schedule).generate({placement, groups}));
}

std::int64_t sum(const MemoryProof& m) {
  return (m.weights + m.versions + m.gradients + m.optimizer_state + m.kept + m.transfers + m.transient)
      .value;
}

}  // namespace

TEST_CASE("one rank, one micro-batch, by hand", "[memory]") {
  CostTable costs;
  StageCosts& c = costs.stages.emplace_back();
  c.parameters = Bytes{1000};
  c.buffers = Bytes{10};
  c.optimizer_state = Bytes{2000};
  c.input = Bytes{100};
  c.kept_for_input = Bytes{50};
  c.forward_peak = Bytes{70};
  c.backward_peak = Bytes{80};
  const Proof proof = check(lowered("fill_drain", Placement::straight(1), {1}), &costs);
  REQUIRE(proof.memory.size() == 1);
  const MemoryProof& m = proof.memory.front();
  CHECK(m.weights.value == 1010);
  CHECK(m.gradients.value == 1000);
  CHECK(m.optimizer_state.value == 2000);
  CHECK(m.versions.value == 0);
  CHECK(m.kept.value == 350);  // the data, what the forward kept, and two micro-batches read ahead
  CHECK(m.transfers.value == 0);
  CHECK(m.transient.value == 80);
  CHECK(m.peak.value == 4440);
  CHECK(m.at == "rank 0 [2] backward of micro-batch 0 on stage 0");
}

TEST_CASE("between the halves of a backward lies what the second needs; recomputed, nothing before, by hand",
          "[memory]") {
  CostTable costs;
  StageCosts& c = costs.stages.emplace_back();
  c.input = Bytes{1};
  c.kept_for_input = Bytes{100};
  c.kept_for_weight = Bytes{60};
  c.forward_peak = Bytes{2'000};
  c.backward_peak = Bytes{1'000};
  const auto peak = [&](const std::string& actions) {
    const Proof proof =
        check(lower(program_from_text(
                  "stagecraft program 1\nstages 0\ngroups 3\nrank 0: " + actions + " S0 P0\n", "test.txt")),
              &costs);
    INFO(refusal(proof.findings));
    REQUIRE(proof.accepted());
    return std::pair{proof.memory[0].peak.value, proof.memory[0].at};
  };
  const std::int64_t ahead = kReadAhead * c.input.value;
  // Two micro-batches are kept whole, with their data, while the third goes forward.
  CHECK(peak("L0 F0 L1 F1 L2 F2 I0 W0 I1 W1 I2 W2") ==
        std::pair{ahead + 3 + 200 + 2'000, std::string("rank 0 [5] forward of micro-batch 2 on stage 0")});
  // Two wait for their weight halves: 60 of each are kept, and their data.
  CHECK(peak("L0 F0 L1 F1 I0 I1 L2 F2 W0 W1 I2 W2") ==
        std::pair{ahead + 3 + 2 * 60 + 2'000, std::string("rank 0 [7] forward of micro-batch 2 on stage 0")});
  CHECK(
      peak("L0 F0 L1 F1 I0 L2 F2 W0 I1 W1 I2 W2") ==
      std::pair{ahead + 3 + 60 + 100 + 2'000, std::string("rank 0 [6] forward of micro-batch 2 on stage 0")});
  // Recomputed: of those that went forward only the data lies there, until the recompute.
  CHECK(peak("L0 F0 L1 F1 L2 F2 R0 B0 R1 B1 R2 B2") ==
        std::pair{ahead + 3 + 2'000, std::string("rank 0 [5] forward of micro-batch 2 on stage 0")});
  CHECK(peak("L0 F0 L1 F1 L2 F2 R0 I0 R1 I1 R2 I2 W0 W1 W2") ==
        std::pair{ahead + 3 + 2 * 60 + 2'000,
                  std::string("rank 0 [10] recompute of micro-batch 2 on stage 0")});
}

TEST_CASE("two stages under 1F1B, by hand", "[memory]") {
  CostTable costs;
  costs.stages.resize(2);
  costs.stages[0].input = Bytes{1};
  costs.stages[0].output = costs.stages[1].input = Bytes{100};
  costs.stages[0].kept_for_input = Bytes{10'000};
  costs.stages[1].kept_for_input = Bytes{1'000'000};
  costs.loss = Bytes{10'000'000};
  const LoweredProgram program = lowered("1f1b", Placement::straight(2), {4});
  const Proof proof = check(program, &costs);
  INFO(to_text(program));
  // Rank 0: two micro-batches in flight (data and kept), two read ahead, two slots for gradients and one for
  // the loss, and up to two sends under way.
  CHECK(proof.memory[0].kept.value == 2 * 1 + 2 * 10'000 + 2 * 1);
  CHECK(proof.memory[0].transfers.value == 2 * 100 + 10'000'000 + 2 * 100);
  // Rank 1: one in flight, two slots; in the end the loss and two gradients are under way.
  CHECK(proof.memory[1].peak.value == 2 * 100 + 1'000'000 + 10'000'000 + 2 * 100);
  CHECK(proof.memory[1].kept.value == 1'000'000);
}

TEST_CASE("the peak is what a ledger finds", "[memory]") {
  auto placements = test::straight_placements();
  for (auto& odd : test::odd_placements()) placements.push_back(std::move(odd));
  int recomputed_or_split = 0;
  for (const auto& entry : test::program_grid(placements)) {
    const CostTable costs = costs_for(entry.program.placement.stages());
    const Proof proof = check(entry.program, &costs);
    REQUIRE(proof.memory.size() == entry.program.ranks.size());
    const std::vector<HeldBytes> curves = held_bytes(entry.program, costs);
    REQUIRE(curves.size() == proof.memory.size());
    for (const MemoryProof& memory : proof.memory) {
      const Ledger ledger(entry.program, costs, proof, memory.rank);
      const HeldBytes& curve = curves[memory.rank.index()];
      INFO(entry.name << " rank " << memory.rank.value << ", at " << memory.at);
      CHECK(memory.peak.value == ledger.peak());
      CHECK(memory.at == ledger.at());
      CHECK(ledger.empty());
      CHECK(memory.peak.value == sum(memory));
      CHECK(curve.rank == memory.rank);
      CHECK(std::equal(curve.moments.begin(), curve.moments.end(), ledger.moments().begin(),
                       ledger.moments().end(), [](Bytes a, std::int64_t b) { return a.value == b; }));
      CHECK((curve.moments.empty()
                 ? curve.fixed
                 : *std::max_element(curve.moments.begin(), curve.moments.end())) == memory.peak);
    }
    recomputed_or_split += entry.name.ends_with("both") ? 1 : 0;
  }
  CHECK(recomputed_or_split > 10);
}

TEST_CASE("every row of the memory table counts: without it, or for another time, a ledger disagrees",
          "[memory]") {
  struct Case {
    LoweredProgram program;
    CostTable costs;
    std::vector<std::vector<std::int64_t>> moments;  // [rank], by the ledger
  };
  std::vector<Case> cases;
  auto placements = test::straight_placements();
  for (auto& odd : test::odd_placements()) placements.push_back(std::move(odd));
  for (auto& entry : test::program_grid(placements)) {
    CostTable costs = costs_for(entry.program.placement.stages());
    costs.stages.front().read = Bytes{130};
    costs.stages.back().compute_copy = Bytes{50'000};
    // The grid repeats forwards of even stages, and costs_of keeps outputs of odd ones: here both meet.
    costs.stages.front().output_kept = cases.size() % 2 == 0;
    const Proof proof = check(entry.program, &costs);
    Case& one = cases.emplace_back(Case{std::move(entry.program), std::move(costs), {}});
    for (std::size_t r = 0; r < one.program.ranks.size(); ++r)
      one.moments.push_back(Ledger(one.program, one.costs, proof, Rank{r}).moments());
  }
  const auto agrees = [&](const MemoryTable& table) {
    return std::all_of(cases.begin(), cases.end(), [&](const Case& one) {
      const std::vector<HeldBytes> curves = held_bytes(one.program, one.costs, table);
      return std::equal(curves.begin(), curves.end(), one.moments.begin(), one.moments.end(),
                        [](const HeldBytes& curve, const std::vector<std::int64_t>& moments) {
                          return std::equal(curve.moments.begin(), curve.moments.end(), moments.begin(),
                                            moments.end(),
                                            [](Bytes a, std::int64_t b) { return a.value == b; });
                        });
    });
  };
  REQUIRE(agrees(kMemoryTable));

  for (std::size_t i = 0; i < kMemoryTable.standing.size(); ++i) {
    std::vector<StandingRow> rows(kMemoryTable.standing.begin(), kMemoryTable.standing.end());
    rows.erase(rows.begin() + static_cast<std::ptrdiff_t>(i));
    INFO("without standing row " << i);
    CHECK_FALSE(agrees({rows, kMemoryTable.held}));
  }
  for (std::size_t i = 0; i < kMemoryTable.held.size(); ++i) {
    std::vector<HeldRow> rows(kMemoryTable.held.begin(), kMemoryTable.held.end());
    const Moment until = rows[i].until;
    // The nearest moments before and after the end that it has.
    std::vector<Moment> others;
    if (until == Moment::backward_weight) others = {Moment::backward_input};
    if (until == Moment::backward_input) others = {Moment::forward, Moment::backward_weight};
    if (until == Moment::output_unused) others = {Moment::backward_input, Moment::next_backward_weight};
    for (const Moment other : others) {
      rows[i].until = other;
      INFO("held row " << i << " until moment " << static_cast<int>(other));
      CHECK_FALSE(agrees({kMemoryTable.standing, rows}));
    }
    rows.erase(rows.begin() + static_cast<std::ptrdiff_t>(i));
    INFO("without held row " << i);
    CHECK_FALSE(agrees({kMemoryTable.standing, rows}));
  }
}

TEST_CASE("there is no curve of a program that was not accepted", "[memory]") {
  LoweredProgram program = lowered("1f1b", Placement::straight(2), {2});
  CHECK_THROWS_AS(held_bytes(program, costs_for(3)), InternalError);
  program.ranks[0][0].stage = StageId{7};
  CHECK_THROWS_AS(held_bytes(program, costs_for(2)), InternalError);
}

TEST_CASE("what schedules are chosen for: activations, versions", "[memory]") {
  const int p = 4;
  const CostTable costs = costs_for(p);
  const auto memory = [&](const char* schedule, bool vertical_sync, const std::vector<int>& groups) {
    return check(lower(find_schedule(schedule).generate({Placement::straight(p), groups, vertical_sync})),
                 &costs)
        .memory;
  };
  const auto all_at_once = memory("fill_drain", false, {12});
  const auto in_turn = memory("1f1b", false, {12});
  const auto stashed = memory("pipedream", false, std::vector<int>(12, 1));
  const auto synced = memory("pipedream", true, std::vector<int>(12, 1));
  for (std::size_t r = 0; r < p; ++r) {
    const std::int64_t parameters = costs.stages[r].parameters.value;
    CHECK(in_turn[r].kept < all_at_once[r].kept);
    CHECK(in_turn[r].versions.value == 0);
    CHECK(stashed[r].versions.value == parameters * (p - 1 - static_cast<int>(r)));
    CHECK(synced[r].versions.value >= stashed[r].versions.value);
  }
  CHECK(synced[p - 1].versions.value == costs.stages[p - 1].parameters.value * (p - 1));
}

TEST_CASE("a rank above its capacity is refused by how much and where", "[memory]") {
  const CostTable costs = costs_for(2);
  const LoweredProgram program = lowered("1f1b", Placement::straight(2), {4});
  const Proof free = check(program, &costs);
  REQUIRE(free.accepted());
  const Bytes most = std::max(free.memory[0].peak, free.memory[1].peak);
  CHECK(check(program, &costs, most).accepted());
  const Proof proof = check(program, &costs, most - Bytes{2048});
  REQUIRE(proof.findings.size() == 1);
  const Finding& finding = proof.findings.front();
  CHECK(finding.kind == Finding::Kind::memory);
  const std::size_t rank = free.memory[0].peak == most ? 0 : 1;
  CHECK(finding.message.find("rank " + std::to_string(rank)) != std::string::npos);
  CHECK(finding.message.find("2.0 KiB more") != std::string::npos);
  CHECK(finding.message.find(free.memory[rank].at) != std::string::npos);
  CHECK(proof.memory.size() == 2);
}

TEST_CASE("cost tables that cannot be are refused", "[memory]") {
  const LoweredProgram program = lowered("1f1b", Placement::straight(2), {2});
  CostTable costs = costs_for(2);
  SECTION("of another number of stages") { costs.stages.pop_back(); }
  SECTION("with negative bytes") { costs.stages[1].output = Bytes{-1}; }
  SECTION("with bytes beyond all memory") { costs.stages[0].kept_for_input = Bytes{std::int64_t{1} << 62}; }
  const Proof proof = check(program, &costs);
  REQUIRE(proof.findings.size() == 1);
  CHECK(proof.findings.front().kind == Finding::Kind::memory);
}

TEST_CASE("a program refused for another reason gets no memory proof", "[memory]") {
  LoweredProgram program = lowered("1f1b", Placement::straight(2), {2});
  program.ranks[0].pop_back();
  const CostTable costs = costs_for(2);
  const Proof proof = check(program, &costs);
  CHECK_FALSE(proof.accepted());
  CHECK(proof.memory.empty());
}

}  // namespace stagecraft
