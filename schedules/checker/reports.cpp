// Proof 1, third part: the loss reports. The last stage's replicas report what they know of a group, and
// stage 0's first rank gathers that and prints. A replica on the printing rank needs no report of its own,
// nor does one without micro-batches in the group.

#include "schedules/checker/proofs.h"

#include <fmt/format.h>

namespace stagecraft::checker {
namespace {

class Reports : ProofOf {
 public:
  Reports(const ProgramIndex& index, Findings& findings)
      : ProofOf(Finding::Kind::completeness, index, findings), last_(index.stages() - 1) {}

  void run() {
    for (std::size_t h = 0; h < index_.holders().size(); ++h) {
      for (int g = 0; g < index_.groups() && !findings_.full(); ++g) check(h, Group{g});
    }
  }

 private:
  [[nodiscard]] Rank printer() const { return index_.holders().front().rank; }

  void check(std::size_t h, Group group) {
    const StageReplica& here = index_.holders()[h];
    const ActionPlace report = index_.report(h, group);
    const ActionPlace last_forward = here.stage == last_ ? last_forward_of(here, group) : ActionPlace{};
    const bool sends = last_forward.found() && here.rank != printer();
    if (!report.found()) {
      if (h == 0 || sends) {
        add(fmt::format("rank {}: no loss report of group {} on stage {}; expected one", here.rank.value,
                        group.value, here.stage.value));
      }
      return;
    }
    if (h != 0 && !sends) return add(index_.name(report) + ": there is nothing to report here");
    if (last_forward.found()) needs(report, last_forward, "the last forward of its group");
    if (sends) check_sent(Tag::loss(last_, group, here.replica), report);
    if (h == 0) check_gathered(group, report);
  }

  /// On the replica's own rank: the loss leaves after the report.
  void check_sent(const Tag& loss, ActionPlace report) {
    const ActionPlace start = index_.transfer(loss).start;
    if (!start.found()) {
      return add(index_.name(report) + ": its loss is never sent to stage 0's first rank");
    }
    needs(start, report, "the report that makes it");
  }

  /// On the printing rank: behind the losses of all replicas, and behind the step that is reported.
  void check_gathered(Group group, ActionPlace report) {
    if (index_.trains(index_.holders().front().stage))
      needs(report, index_.update(0, group).step, "the step of its group");
    for (std::size_t h = index_.first_holder(last_); h < index_.holders().size(); ++h) {
      const StageReplica& reporter = index_.holders()[h];
      const ActionPlace last_forward = last_forward_of(reporter, group);
      if (!last_forward.found()) continue;
      if (reporter.rank == printer()) {
        needs(report, last_forward, "the last forward of its group");
        continue;
      }
      const Tag loss = Tag::loss(last_, group, reporter.replica);
      needs(report, index_.transfer(loss).wait, "the wait for " + describe_tag(loss));
    }
  }

  /// The forward of the last of `group`'s micro-batches that a replica of the last stage has.
  [[nodiscard]] ActionPlace last_forward_of(const StageReplica& at, Group group) const {
    const int end = index_.begin_of(Group{group.value + 1});
    const int last = end - 1 - (end - 1 - at.replica + at.replicas) % at.replicas;
    return last >= index_.begin_of(group) ? index_.work(last_, MicroBatch{last}).forward : ActionPlace{};
  }

  StageId last_;
};

}  // namespace

void prove_reports(const ProgramIndex& index, Findings& findings) { Reports(index, findings).run(); }

}  // namespace stagecraft::checker
