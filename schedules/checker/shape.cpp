// Proof 0: the shape. Everything here guards an index that a later proof takes without looking.

#include "schedules/checker/program_index.h"
#include "schedules/rules/reductions.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace stagecraft::checker {
namespace {

/// Checks the numbers of one rank's actions.
class RankShape {
 public:
  RankShape(const LoweredProgram& program, const std::vector<Group>& groups, Rank rank)
      : program_(program), placement_(program.placement), groups_(groups), rank_(rank) {}

  [[nodiscard]] static Finding::Kind kind(const Action& a) {
    if (is_transfer(a.op)) return Finding::Kind::matching;
    return a.op == Op::release ? Finding::Kind::buffers : Finding::Kind::completeness;
  }

  /// If not, `why` says why.
  [[nodiscard]] bool right(const Action& a) { return unused_fields(a) && values(a); }
  [[nodiscard]] const std::string& why() const { return why_; }

 private:
  // Each of these returns whether all is well; sentences are made only where it is not.
  bool refuse(std::string why) {
    why_ = std::move(why);
    return false;
  }

  /// The fields that an action uses are looked at by `values`; all others must be "none".
  bool unused_fields(const Action& a) {
    const bool work = is_compute(a.op) || a.op == Op::load;
    const bool update = a.op == Op::reduce || a.op == Op::step || a.op == Op::report_loss;
    const bool receive = a.op == Op::post_receive || a.op == Op::wait_receive;
    if (a.stage.value != -1 && !work && !update) return refuse("does not use a stage");
    if (a.micro_batch.value != -1 && !work) return refuse("does not use a micro-batch");
    if (a.version.value != -1 && !is_compute(a.op) && a.op != Op::step)
      return refuse("does not use a version");
    if (a.group.value != -1 && !work && !update && a.op != Op::agree_norm && a.op != Op::tie)
      return refuse("does not use a group");
    if (a.tie.value != -1 && a.op != Op::tie) return refuse("does not use a tied weight");
    if (!is_transfer(a.op) && a.tag != Tag{}) return refuse("does not use a tag");
    if (a.slot.value != -1 && !is_compute(a.op) && !receive && a.op != Op::release)
      return refuse("does not use a slot");
    return true;
  }

  bool values(const Action& a) {
    switch (a.op) {
      case Op::load:
        return work(a) &&
               (program_.loads(a.stage) ||
                refuse("only the first and the last stage load data, and those that \"loads\" names"));
      case Op::forward:
        return work(a) && version(a) && optional_slot(a);
      case Op::recompute:
        return work(a) && not_frozen(a.stage) && version(a) && optional_slot(a);
      case Op::backward:
      case Op::backward_input:
      case Op::backward_weight:
        return only_in_training() && work(a) && not_frozen(a.stage) && version(a) && optional_slot(a);
      case Op::reduce:
        return only_in_training() && holds_stage(a.stage) && group(a);
      case Op::tie:
        return only_in_training() && holds_tied(a.tie) && group(a);
      case Op::agree_norm:
        return only_in_training() && group(a);
      case Op::step:
        return only_in_training() && holds_stage(a.stage) && not_frozen(a.stage) && group(a) && version(a);
      case Op::report_loss:
        return holds_stage(a.stage) && group(a);
      case Op::post_receive:
      case Op::wait_receive:
        return tag(a.tag, /*receiver=*/true) && slot(a);
      case Op::start_send:
      case Op::wait_send:
        return tag(a.tag, /*receiver=*/false);
      case Op::release:
        return slot(a);
    }
    return refuse(fmt::format("there is no action {}", static_cast<int>(a.op)));
  }

  bool only_in_training() {
    return program_.kind == SegmentKind::train || refuse("a validation program has forwards only");
  }

  bool not_frozen(StageId stage) {
    return stage >= program_.gradient_from ||
           refuse(fmt::format("gradients begin at stage {}: stage {} is frozen, and has forwards alone",
                              program_.gradient_from.value, stage.value));
  }

  bool is_stage(StageId stage) {
    return (stage.value >= 0 && stage.value < placement_.stages()) ||
           refuse(fmt::format("stage {} is none of the {} stages", stage.value, placement_.stages()));
  }

  bool holds_stage(StageId stage) {
    if (!is_stage(stage)) return false;
    const auto& ranks = placement_.ranks[stage.index()];
    return std::find(ranks.begin(), ranks.end(), rank_) != ranks.end() ||
           refuse(fmt::format("rank {} does not hold stage {}", rank_.value, stage.value));
  }

  bool holds_tied(TieId tie) {
    if (!tie.valid() || tie.index() >= program_.ties.size()) {
      return refuse(
          fmt::format("tied weight {} is none of the {} tied weights", tie.value, program_.ties.size()));
    }
    const std::vector<Rank> members = members_of(placement_, program_.ties[tie.index()]);
    return std::binary_search(members.begin(), members.end(), rank_) ||
           refuse(fmt::format("rank {} holds no layer with tied weight {}", rank_.value, tie.value));
  }

  bool is_micro_batch(MicroBatch mb) {
    return (mb.valid() && mb.index() < groups_.size()) ||
           refuse(fmt::format("micro-batch {} is none of the {} micro-batches", mb.value, groups_.size()));
  }

  /// Stage, micro-batch, the replica that it belongs to and the group that it feeds.
  bool work(const Action& a) {
    if (!is_stage(a.stage) || !is_micro_batch(a.micro_batch)) return false;
    const Rank owner = placement_.rank_of(a.stage, a.micro_batch);
    if (owner != rank_) {
      return refuse(
          fmt::format("micro-batch {} of stage {} belongs to rank {} (replica = micro-batch mod width)",
                      a.micro_batch.value, a.stage.value, owner.value));
    }
    const Group fed = groups_[a.micro_batch.index()];
    return a.group == fed || refuse(fmt::format("names group {}, but micro-batch {} belongs to group {}",
                                                a.group.value, a.micro_batch.value, fed.value));
  }

  bool group(const Action& a) {
    return (a.group.valid() && a.group.value < program_.groups()) ||
           refuse(fmt::format("group {} is none of the {} groups", a.group.value, program_.groups()));
  }

  bool version(const Action& a) {
    const int most = program_.kind == SegmentKind::train ? program_.groups() : 0;
    return (a.version.valid() && a.version.value <= most) ||
           refuse(fmt::format("version {} never exists: the segment has versions 0 to {}", a.version.value,
                              most));
  }

  bool slot(const Action& a) {
    const std::size_t slots = program_.slots[rank_.index()].size();
    return (a.slot.valid() && a.slot.index() < slots) ||
           refuse(fmt::format("slot {} is none of the rank's {} slots", a.slot.value, slots));
  }

  bool optional_slot(const Action& a) { return a.slot == Slot{} || slot(a); }

  /// Whether what `from` makes goes to `to`.
  [[nodiscard]] bool boundary(StageId from, StageId to) const {
    return to.value == from.value + 1 ||
           std::binary_search(program_.skips.begin(), program_.skips.end(), Skip{from, to});
  }

  /// A tag that exists, and this rank is its receiver or its sender.
  bool tag(const Tag& t, bool receiver) {
    if (!is_stage(t.from) || !is_stage(t.to)) return false;
    const int last = placement_.stages() - 1;
    bool known = false;
    switch (t.payload) {
      case Payload::activation:
        known = boundary(t.from, t.to);
        break;
      case Payload::gradient:
        known = boundary(t.to, t.from);
        break;
      case Payload::loss:
        known = t.from.value == last && t.to.value == 0;
        break;
      default:
        return refuse(fmt::format("there is no payload {}", static_cast<int>(t.payload)));
    }
    if (!known) {
      return refuse(fmt::format("no {} goes from stage {} to stage {}", enum_name(t.payload), t.from.value,
                                t.to.value));
    }
    if (t.payload == Payload::gradient && !(only_in_training() && not_frozen(t.to))) return false;
    if (!(t.is_loss() ? loss_range(t) : boundary_range(t))) return false;
    const Rank sender = sender_of(placement_, t);
    const Rank destination = receiver_of(placement_, t);
    if (sender == destination) {
      return refuse(
          fmt::format("both ends are on rank {}: a hand-off in memory, not a transfer", sender.value));
    }
    const Rank expected = receiver ? destination : sender;
    return expected == rank_ ||
           refuse(fmt::format("{} by rank {}", receiver ? "is received" : "is sent", expected.value));
  }

  bool boundary_range(const Tag& t) {
    if (t.tensor() != 0) return refuse(fmt::format("tensor {} of a boundary that has one", t.tensor()));
    return is_micro_batch(t.micro_batch());
  }

  bool loss_range(const Tag& t) {
    if (!t.group().valid() || t.group().value >= program_.groups()) {
      return refuse(fmt::format("group {} is none of the {} groups", t.group().value, program_.groups()));
    }
    const int replicas = placement_.replicas(t.from);
    return (t.replica() >= 0 && t.replica() < replicas) ||
           refuse(fmt::format("replica {} is none of the last stage's {} replicas", t.replica(), replicas));
  }

  const LoweredProgram& program_;
  const Placement& placement_;
  const std::vector<Group>& groups_;
  Rank rank_;
  std::string why_;
};

bool header_well_formed(const LoweredProgram& program, Findings& findings) {
  constexpr auto kind = Finding::Kind::completeness;
  try {
    validate_header(program);
  } catch (const InputError& error) {
    findings.add(kind, error.what());
    return false;
  }
  const auto world = static_cast<std::size_t>(program.placement.world());
  if (program.ranks.size() != world || program.slots.size() != world) {
    findings.add(kind, fmt::format("{} ranks hold stages, but there are {} lists of actions and {} of slots",
                                   world, program.ranks.size(), program.slots.size()));
    return false;
  }
  // Before tables are sized by them: all that must be done must fit into the actions there are.
  std::int64_t actions = 0;
  for (const auto& list : program.ranks) actions += static_cast<std::int64_t>(list.size());
  const std::int64_t forwards = std::int64_t{program.placement.stages()} * program.micro_batches();
  std::int64_t steps = 0;
  if (program.kind == SegmentKind::train) {
    for (int s = program.gradient_from.value; s < program.placement.stages(); ++s) {
      steps += std::int64_t{program.placement.replicas(StageId{s})} * program.groups();
    }
  }
  if (forwards + steps > actions) {
    findings.add(kind, fmt::format("{} forwards and {} steps are needed, but the program has {} actions",
                                   forwards, steps, actions));
    return false;
  }
  return true;
}

bool slots_well_formed(const LoweredProgram& program, Findings& findings) {
  bool good = true;
  const int stages = program.placement.stages();
  for (std::size_t r = 0; r < program.slots.size(); ++r) {
    for (std::size_t s = 0; s < program.slots[r].size() && !findings.full(); ++s) {
      const SlotInfo& slot = program.slots[r][s];
      const bool in_range = slot.to.value >= 0 && slot.to.value < stages && slot.from.value >= 0 &&
                            slot.from.value < stages && slot.payload <= Payload::loss;
      if (in_range) continue;
      findings.add(Finding::Kind::buffers, fmt::format("rank {} slot {}: from stage {} to stage {} of {}", r,
                                                       s, slot.from.value, slot.to.value, stages));
      good = false;
    }
  }
  return good;
}

}  // namespace

bool well_formed(const LoweredProgram& program, Findings& findings) {
  if (!header_well_formed(program, findings) || !slots_well_formed(program, findings)) return false;
  const auto groups = program.groups_by_micro_batch();
  bool good = true;
  for (std::size_t r = 0; r < program.ranks.size(); ++r) {
    RankShape shape(program, groups, Rank{r});
    for (std::size_t i = 0; i < program.ranks[r].size() && !findings.full(); ++i) {
      const Action& action = program.ranks[r][i];
      if (shape.right(action)) continue;
      const ActionPlace here{Rank{r}, static_cast<std::int32_t>(i)};
      findings.add(RankShape::kind(action), fmt::format("{}: {}", program.name(here), shape.why()));
      good = false;
    }
  }
  return good;
}

}  // namespace stagecraft::checker
