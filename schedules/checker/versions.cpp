// Proof 4: versions. What is read exists and agrees, on all stages that hold a tied weight too; from that follow, for every stage on every rank, the
// most micro-batches in flight, the most versions alive and the staleness, as facts and not as formulas
// assumed.

#include "schedules/checker/proofs.h"
#include "schedules/rules/staleness.h"

#include <fmt/format.h>

#include <algorithm>

namespace stagecraft::checker {
namespace {

/// Intervals of a rank's list, by their first and their last positions, which are all different.
class Intervals {
 public:
  void add(std::int32_t begin, std::int32_t end) {
    begins_.push_back(begin);
    ends_.push_back(end);
  }
  /// The most that hold at once.
  [[nodiscard]] int most_at_once() {
    sort(begins_);
    sort(ends_);
    std::size_t ended = 0;
    std::size_t most = 0;
    for (std::size_t begun = 0; begun < begins_.size(); ++begun) {
      while (ended < ends_.size() && ends_[ended] < begins_[begun]) ++ended;
      most = std::max(most, begun + 1 - std::min(ended, begun + 1));
    }
    return static_cast<int>(most);
  }

 private:
  static void sort(std::vector<std::int32_t>& positions) {
    // Micro-batches most often come in order.
    if (!std::is_sorted(positions.begin(), positions.end())) std::sort(positions.begin(), positions.end());
  }

  std::vector<std::int32_t> begins_, ends_;
};

class Versions : ProofOf {
 public:
  Versions(const ProgramIndex& index, Findings& findings)
      : ProofOf(Finding::Kind::versions, index, findings) {}

  std::vector<StageProof> run() {
    std::vector<StageProof> proofs;
    for (std::size_t h = 0; h < index_.holders().size() && !findings_.full(); ++h) {
      if (index_.trains(index_.holders()[h].stage)) check_steps(h);
      for (const MicroBatch mb : index_.micro_batches_of(h)) check_reads(h, mb);
      proofs.push_back(derive(h));
    }
    for (std::size_t k = 0; index_.train() && k < index_.program().ties.size(); ++k) check_tied(TieId{k});
    return proofs;
  }

 private:
  /// Steps go 0, 1, ...: the one of group g reads version g and writes g + 1.
  void check_steps(std::size_t h) {
    for (int g = 0; g < index_.groups() && !findings_.full(); ++g) {
      const ActionPlace step = index_.update(h, Group{g}).step;
      if (!step.found()) continue;
      const int reads = index_.action(step).version.value;
      if (reads != g) add(fmt::format("{}: updates version {}, expected {}", index_.name(step), reads, g));
      const ActionPlace previous = g > 0 ? index_.update(h, Group{g - 1}).step : ActionPlace{};
      if (step.before(previous)) {
        add(fmt::format("{}: comes before {}; steps go in the order of their groups", index_.name(step),
                        index_.name(previous)));
      }
    }
  }

  void check_reads(std::size_t h, MicroBatch mb) {
    const MicroBatchPlaces& work = index_.work(index_.holders()[h].stage, mb);
    if (!work.forward.found()) return;
    const int version = index_.action(work.forward).version.value;
    if (version > 0) {
      const ActionPlace written = index_.update(h, Group{version - 1}).step;
      if (!written.before(work.forward))
        needs(work.forward, written, fmt::format("the step that writes version {}", version));
    }
    for (const ActionPlace later : {work.recompute, work.input_part, work.weight_part}) {
      if (!later.found() || index_.action(later).version.value == version) continue;
      add(fmt::format("{}: reads version {}, but {} read version {}; both must read the same",
                      index_.name(later), index_.action(later).version.value, index_.name(work.forward),
                      version));
      return;
    }
  }

  /// One weight, of which a micro-batch sees one version wherever a layer reads it.
  void check_tied(TieId tie) {
    const std::vector<StageId>& holders = index_.program().ties[tie.index()];
    for (int mb = 0; mb < index_.micro_batches() && !findings_.full(); ++mb) {
      const ActionPlace first = index_.work(holders.front(), MicroBatch{mb}).forward;
      for (const StageId holder : holders) {
        const ActionPlace other = index_.work(holder, MicroBatch{mb}).forward;
        if (!first.found() || !other.found()) continue;
        const int versions[] = {index_.action(first).version.value, index_.action(other).version.value};
        if (versions[0] == versions[1]) continue;
        add(
            fmt::format("{} reads version {}, but {} reads version {}; both stages hold tied weight {}, of "
                        "which a micro-batch reads one version",
                        index_.name(first), versions[0], index_.name(other), versions[1], tie.value));
        return;
      }
    }
  }

  [[nodiscard]] StageProof derive(std::size_t h) const {
    const StageReplica& at = index_.holders()[h];
    StageProof proof{.stage = at.stage, .rank = at.rank};
    Intervals in_flight;
    bool first = true;
    for (const MicroBatch mb : index_.micro_batches_of(h)) {
      const MicroBatchPlaces& work = index_.work(at.stage, mb);
      if (!work.forward.found() || !work.input_part.found()) continue;
      in_flight.add(work.forward.at, work.input_part.at);
      const int staleness = staleness_of(index_.action(work.forward), index_.group_of(mb));
      proof.staleness_min = first ? staleness : std::min(proof.staleness_min, staleness);
      proof.staleness_max = first ? staleness : std::max(proof.staleness_max, staleness);
      first = false;
    }
    proof.in_flight = in_flight.most_at_once();
    proof.versions_alive = 1 + old_versions(index_, h);
    return proof;
  }
};

}  // namespace

int old_versions(const ProgramIndex& index, std::size_t holder) {
  if (!index.trains(index.holders()[holder].stage)) return 0;
  std::vector<std::int32_t> last_reader(static_cast<std::size_t>(index.groups()) + 1, -1);
  for (const MicroBatch mb : index.micro_batches_of(holder)) {
    const MicroBatchPlaces& work = index.work(index.holders()[holder].stage, mb);
    for (const ActionPlace place : {work.forward, work.recompute, work.input_part, work.weight_part}) {
      if (!place.found()) continue;
      std::int32_t& last = last_reader[index.action(place).version.index()];
      last = std::max(last, place.at);
    }
  }
  Intervals old;
  for (int g = 0; g < index.groups(); ++g) {
    const ActionPlace step = index.update(holder, Group{g}).step;  // version g is old from here on
    const std::int32_t last = last_reader[static_cast<std::size_t>(g)];
    if (!step.found() || last <= step.at) continue;
    old.add(step.at, last);
  }
  return old.most_at_once();
}

std::vector<StageProof> prove_versions(const ProgramIndex& index, Findings& findings) {
  return Versions(index, findings).run();
}

}  // namespace stagecraft::checker
