#include "schedules/checker/peak_forms.h"

#include "base/error.h"
#include "schedules/checker/moments.h"
#include "schedules/rules/reductions.h"

#include <algorithm>
#include <span>
#include <utility>

namespace stagecraft {

/// Of one rank, from its list.
class PeakFormsMaker {
 public:
  PeakFormsMaker(const checker::ProgramIndex& index, const std::vector<Bytes>& ties, Rank rank)
      : index_(index), ties_(ties), rank_(rank) {
    for (std::size_t h = 0; h < index_.holders().size(); ++h) {
      if (index_.holders()[h].rank == rank_) add_stage(h);
    }
    for (const SlotInfo& slot : index_.program().slots[rank_.index()]) {
      if (slot.payload == Payload::loss) {
        ++made_.fixed_losses;
      } else {
        const bool activation = slot.payload == Payload::activation;
        ++fixed(slot.to, activation ? &StageCosts::input : &StageCosts::output);
      }
    }
    add_losses();
    add_sums();
  }

  PeakForms::RankForms make() {
    const std::size_t columns = made_.columns.size();
    made_.fixed.resize(columns, 0);
    std::stable_sort(changes_.begin(), changes_.end(),
                     [](const Change& a, const Change& b) { return a.moment < b.moment; });
    const auto& list = index_.program().ranks[rank_.index()];
    PeakForms::Form now{std::vector<std::int32_t>(columns, 0)};
    auto next = changes_.begin();
    const auto apply = [&](std::int64_t moment) {
      for (; next != changes_.end() && next->moment == moment; ++next) {
        (next->column < 0 ? now.losses : now.counts[to_size(next->column)]) += next->by;
      }
    };
    for (std::size_t i = 0; i < list.size(); ++i) {
      const auto at = static_cast<std::int32_t>(i);
      apply(checker::begin_of(at));
      now.transient = transient_of(list[i]);
      keep(now);
      now.transient = -1;
      apply(checker::end_of(at));
      keep(now);
    }
    return std::move(made_);
  }

 private:
  using Column = PeakForms::Column;

  struct Change {
    std::int64_t moment;
    int column;  ///< negative: a loss
    int by;
  };

  [[nodiscard]] std::size_t place(StageId stage) const {
    const auto found = std::ranges::find(made_.stages, stage);
    STAGECRAFT_CHECK(found != made_.stages.end(), "a rank holds tensors of its own stages");
    return to_size(found - made_.stages.begin());
  }

  int column(const Column& wanted) {
    const auto found = std::ranges::find(made_.columns, wanted);
    if (found != made_.columns.end()) return static_cast<int>(found - made_.columns.begin());
    made_.columns.push_back(wanted);
    return static_cast<int>(made_.columns.size()) - 1;
  }

  std::int32_t& fixed(StageId stage, Bytes StageCosts::*bytes) {
    const auto at = to_size(column({place(stage), bytes, Column::If::always}));
    made_.fixed.resize(std::max(made_.fixed.size(), at + 1), 0);
    return made_.fixed[at];
  }

  void hold(int column, std::int64_t from, std::int64_t until) {
    if (until <= from) return;
    changes_.push_back({from, column, 1});
    changes_.push_back({until, column, -1});
  }

  void add_stage(std::size_t holder) {
    const StageId stage = index_.holders()[holder].stage;
    made_.stages.push_back(stage);
    made_.replicas.push_back(index_.program().placement.replicas(stage));
    const Situation here{
        .first = stage.value == 0, .last = index_.is_last(stage), .training = index_.trains(stage)};
    each_row(kMemoryTable.standing, StageCosts{}, here,
             [&](const StandingRow& row, Bytes) { fixed(stage, row.bytes) += row.times; });
    for (const MicroBatch mb : index_.micro_batches_of(holder)) {
      const checker::MicroBatchMoments moments = checker::moments_of(index_, stage, mb);
      for (const HeldRow& row : kMemoryTable.held) {
        const bool with = applies(row, moments.here, true);
        const bool without = applies(row, moments.here, false);
        if (!with && !without) continue;
        const auto condition = with && without ? Column::If::always
                               : with          ? Column::If::output_kept
                                               : Column::If::output_not_kept;
        hold(column({place(stage), row.bytes, condition}), checker::end_of(moments[row.from]),
             checker::end_of(moments[row.until]));
      }
    }
  }

  [[nodiscard]] static bool applies(const HeldRow& row, Situation here, bool output_kept) {
    StageCosts costs;
    costs.output_kept = output_kept;
    bool found = false;
    each_row(std::span(&row, 1), costs, here, [&](const HeldRow&, Bytes) { found = true; });
    return found;
  }

  void add_losses() {
    for (const StageReplica& at : index_.holders()) {
      if (!index_.is_last(at.stage) || at.rank != rank_) continue;
      const checker::Transfer& loss = index_.transfer(Tag::loss(at.stage, Group{0}, at.replica));
      if (loss.start.found()) hold(-1, checker::end_of(loss.start.at), checker::end_of(loss.wait_send.at));
    }
  }

  void add_sums() {
    const auto& list = index_.program().ranks[rank_.index()];
    for (std::int32_t at = 0; at < static_cast<std::int32_t>(list.size()); ++at) {
      const Action& action = list[static_cast<std::size_t>(at)];
      if (action.op != Op::reduce && action.op != Op::tie) continue;
      const std::int32_t join = last_backward_into(index_.program(), list, at);
      hold(column(staging(action)), checker::begin_of(join < 0 ? at : join), checker::end_of(at));
    }
  }

  [[nodiscard]] Column staging(const Action& sum) const {
    if (sum.op == Op::reduce) return {place(sum.stage), nullptr, Column::If::always};
    const LoweredProgram& program = index_.program();
    const Bytes bytes = ties_.empty() ? Bytes{} : ties_[sum.tie.index()];
    return {.stage = 0,
            .bytes = nullptr,
            .condition = Column::If::always,
            .given = tie_staging(bytes, copies_of(program.placement, program.ties[sum.tie.index()]), rank_)};
  }

  int transient_of(const Action& action) {
    if (!is_compute(action.op) && action.op != Op::step) return -1;
    const bool keeps_nothing =
        is_compute(action.op) && index_.keeps_nothing(action.stage, action.micro_batch);
    const PeakForms::Transient wanted{place(action.stage), action.op, keeps_nothing};
    const auto found = std::ranges::find(made_.transients, wanted);
    if (found != made_.transients.end()) return static_cast<int>(found - made_.transients.begin());
    made_.transients.push_back(wanted);
    return static_cast<int>(made_.transients.size()) - 1;
  }

  /// Whether `a` holds as much of everything as `b`.
  [[nodiscard]] static bool covers(const PeakForms::Form& a, const PeakForms::Form& b) {
    if (b.transient >= 0 && a.transient != b.transient) return false;
    if (a.losses < b.losses) return false;
    for (std::size_t c = 0; c < a.counts.size(); ++c) {
      if (a.counts[c] < b.counts[c]) return false;
    }
    return true;
  }

  void keep(const PeakForms::Form& now) {
    std::vector<PeakForms::Form>& forms = made_.forms;
    for (std::size_t i = 0; i < forms.size(); ++i) {
      if (!covers(forms[i], now)) continue;
      std::swap(forms[i], forms[i / 2]);  // what covers much is met soon
      return;
    }
    std::erase_if(forms, [&](const PeakForms::Form& known) { return covers(now, known); });
    forms.push_back(now);
  }

  const checker::ProgramIndex& index_;
  const std::vector<Bytes>& ties_;
  Rank rank_;
  PeakForms::RankForms made_;
  std::vector<Change> changes_;
};

PeakForms::PeakForms(const LoweredProgram& program, const std::vector<Bytes>& ties) {
  STAGECRAFT_CHECK(program.groups() == 1 && program.skips.empty(), "one synchronous step, without skips");
  checker::Findings findings;
  STAGECRAFT_CHECK(checker::well_formed(program, findings), "the program was not accepted by the checker");
  const checker::ProgramIndex index(program, findings);
  for (int r = 0; r < index.world(); ++r) ranks_.push_back(PeakFormsMaker(index, ties, Rank{r}).make());
}

Bytes PeakForms::peak(std::size_t rank, const std::vector<const StageCosts*>& stages, Bytes loss) const {
  const RankForms& of = ranks_[rank];
  std::vector<std::int64_t> bytes(of.columns.size());
  std::int64_t fixed = of.fixed_losses * loss.value;
  for (std::size_t c = 0; c < of.columns.size(); ++c) {
    const Column& column = of.columns[c];
    const StageCosts* costs = stages[column.stage];
    const bool counts =
        costs != nullptr && (column.condition == Column::If::always ||
                             costs->output_kept == (column.condition == Column::If::output_kept));
    bytes[c] = column.given.value_or(Bytes{}).value;
    if (counts && !column.given) {
      bytes[c] = column.bytes == nullptr ? sum_staging(*costs, of.replicas[column.stage]).value
                                         : (costs->*column.bytes).value;
    }
    fixed += of.fixed[c] * bytes[c];
  }
  std::int64_t most = 0;
  for (const Form& form : of.forms) {
    std::int64_t held = form.losses * loss.value;
    if (form.transient >= 0) {
      const Transient& during = of.transients[to_size(form.transient)];
      if (const StageCosts* costs = stages[during.stage])
        held += transient(*costs, during.op, during.recomputed).value;
    }
    for (std::size_t c = 0; c < of.columns.size(); ++c) held += form.counts[c] * bytes[c];
    most = std::max(most, held);
  }
  return Bytes{fixed + most};
}

}  // namespace stagecraft
