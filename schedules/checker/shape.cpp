// Proof 0: the shape. Everything here guards an index that a later proof takes without looking.

#include "schedules/checker/subject.h"

#include <fmt/format.h>

#include <algorithm>

namespace stagecraft::checker {
namespace {

/// Checks the numbers of one rank's actions. Each function returns what is wrong, "" for nothing.
class RankShape {
 public:
  RankShape(const LoweredProgram& program, const std::vector<Group>& groups, Rank rank)
      : program_(program), placement_(program.placement), groups_(groups), rank_(rank) {}

  [[nodiscard]] Finding::Kind kind(const Action& a) const {
    if (is_transfer(a.op)) return Finding::Kind::matching;
    return a.op == Op::release ? Finding::Kind::buffers : Finding::Kind::completeness;
  }

  [[nodiscard]] std::string wrong(const Action& a) const {
    return first_of({unused_fields(a), wrong_values(a)});
  }

 private:
  /// The fields an action uses are looked at by `wrong_values`; all others must be "none".
  [[nodiscard]] static std::string unused_fields(const Action& a) {
    const bool work = is_compute(a.op) || a.op == Op::load;
    const bool update = a.op == Op::reduce || a.op == Op::step || a.op == Op::report_loss;
    const bool receive = a.op == Op::post_receive || a.op == Op::wait_receive;
    if (a.stage.value != -1 && !work && !update) return "does not use a stage";
    if (a.micro_batch.value != -1 && !work) return "does not use a micro-batch";
    if (a.version.value != -1 && !is_compute(a.op) && a.op != Op::step) return "does not use a version";
    if (a.group.value != -1 && !work && !update && a.op != Op::agree_norm) return "does not use a group";
    if (a.tag != Tag{} && !is_transfer(a.op)) return "does not use a tag";
    if (a.slot.value != -1 && !is_compute(a.op) && !receive && a.op != Op::release)
      return "does not use a slot";
    return {};
  }

  [[nodiscard]] std::string wrong_values(const Action& a) const {
    switch (a.op) {
      case Op::load: {
        const bool reads_data = a.stage.value == 0 || a.stage.value == placement_.stages() - 1;
        return first_of({work(a), reads_data ? "" : "only the first and the last stage load data"});
      }
      case Op::forward:
      case Op::recompute:
        return first_of({work(a), version(a), optional_slot(a)});
      case Op::backward:
      case Op::backward_input:
      case Op::backward_weight:
        return first_of({only_in_training(), work(a), version(a), optional_slot(a)});
      case Op::reduce:
        return first_of({only_in_training(), holds_stage(a.stage), group(a)});
      case Op::agree_norm:
        return first_of({only_in_training(), group(a)});
      case Op::step:
        return first_of({only_in_training(), holds_stage(a.stage), group(a), version(a)});
      case Op::report_loss:
        return first_of({holds_stage(a.stage), group(a)});
      case Op::post_receive:
      case Op::wait_receive:
        return first_of({tag(a.tag, /*receiver=*/true), slot(a)});
      case Op::start_send:
      case Op::wait_send:
        return tag(a.tag, /*receiver=*/false);
      case Op::release:
        return slot(a);
    }
    return fmt::format("there is no action {}", static_cast<int>(a.op));
  }

  static std::string first_of(std::initializer_list<std::string> all) {
    for (const std::string& one : all) {
      if (!one.empty()) return one;
    }
    return {};
  }

  [[nodiscard]] std::string only_in_training() const {
    return program_.kind == SegmentKind::train ? "" : "a validation program has forwards only";
  }

  [[nodiscard]] bool is_stage(StageId stage) const {
    return stage.value >= 0 && stage.value < placement_.stages();
  }

  [[nodiscard]] bool is_micro_batch(MicroBatch mb) const { return mb.valid() && mb.index() < groups_.size(); }

  [[nodiscard]] std::string stage_range(StageId stage) const {
    if (is_stage(stage)) return {};
    return fmt::format("stage {} is none of the {} stages", stage.value, placement_.stages());
  }

  [[nodiscard]] std::string holds_stage(StageId stage) const {
    if (!is_stage(stage)) return stage_range(stage);
    const auto& ranks = placement_.ranks[stage.index()];
    if (std::find(ranks.begin(), ranks.end(), rank_) != ranks.end()) return {};
    return fmt::format("rank {} does not hold stage {}", rank_.value, stage.value);
  }

  [[nodiscard]] std::string micro_batch_range(MicroBatch mb) const {
    if (is_micro_batch(mb)) return {};
    return fmt::format("micro-batch {} is none of the {} micro-batches", mb.value, groups_.size());
  }

  /// Stage, micro-batch, the replica that it belongs to and the group that it feeds.
  [[nodiscard]] std::string work(const Action& a) const {
    if (!is_stage(a.stage)) return stage_range(a.stage);
    if (!is_micro_batch(a.micro_batch)) return micro_batch_range(a.micro_batch);
    const Rank owner = placement_.rank_of(a.stage, a.micro_batch);
    if (owner != rank_) {
      return fmt::format("micro-batch {} of stage {} belongs to rank {} (replica = micro-batch mod width)",
                         a.micro_batch.value, a.stage.value, owner.value);
    }
    const Group fed = groups_[a.micro_batch.index()];
    if (a.group == fed) return {};
    return fmt::format("names group {}, but micro-batch {} belongs to group {}", a.group.value,
                       a.micro_batch.value, fed.value);
  }

  [[nodiscard]] std::string group(const Action& a) const {
    if (a.group.valid() && a.group.value < program_.groups()) return {};
    return fmt::format("group {} is none of the {} groups", a.group.value, program_.groups());
  }

  [[nodiscard]] std::string version(const Action& a) const {
    const int most = program_.kind == SegmentKind::train ? program_.groups() : 0;
    if (a.version.valid() && a.version.value <= most) return {};
    return fmt::format("version {} never exists: the segment has versions 0 to {}", a.version.value, most);
  }

  [[nodiscard]] std::string slot(const Action& a) const {
    const std::size_t slots = program_.slots[rank_.index()].size();
    if (a.slot.valid() && a.slot.index() < slots) return {};
    return fmt::format("slot {} is none of the rank's {} slots", a.slot.value, slots);
  }

  [[nodiscard]] std::string optional_slot(const Action& a) const {
    return a.slot == Slot{} ? std::string() : slot(a);
  }

  /// A tag that exists, and this rank is its receiver or its sender.
  [[nodiscard]] std::string tag(const Tag& t, bool receiver) const {
    if (!is_stage(t.from)) return stage_range(t.from);
    if (!is_stage(t.to)) return stage_range(t.to);
    const int last = placement_.stages() - 1;
    bool neighbours = false;
    switch (t.payload) {
      case Payload::activation:
        neighbours = t.to.value == t.from.value + 1;
        break;
      case Payload::gradient:
        neighbours = t.to.value == t.from.value - 1;
        break;
      case Payload::loss:
        neighbours = t.from.value == last && t.to.value == 0;
        break;
      default:
        return fmt::format("there is no payload {}", static_cast<int>(t.payload));
    }
    if (!neighbours) {
      return fmt::format("no {} goes from stage {} to stage {}", enum_name(t.payload), t.from.value,
                         t.to.value);
    }
    if (t.payload == Payload::gradient && program_.kind != SegmentKind::train) return only_in_training();
    std::string ends = t.payload == Payload::loss ? loss_range(t) : boundary_range(t);
    if (!ends.empty()) return ends;
    const auto [sender, destination] = ends_of(t);
    if (sender == destination) {
      return fmt::format("both ends are on rank {}: a hand-off in memory, not a transfer", sender.value);
    }
    const Rank expected = receiver ? destination : sender;
    if (expected == rank_) return {};
    return fmt::format("{} by rank {}", receiver ? "is received" : "is sent", expected.value);
  }

  [[nodiscard]] std::string boundary_range(const Tag& t) const {
    if (t.index != 0) return fmt::format("tensor {} of a boundary that has one", t.index);
    return micro_batch_range(t.micro_batch);
  }

  /// A loss carries the group in the micro-batch's place and the last stage's replica in the index.
  [[nodiscard]] std::string loss_range(const Tag& t) const {
    if (!t.micro_batch.valid() || t.micro_batch.value >= program_.groups()) {
      return fmt::format("group {} is none of the {} groups", t.micro_batch.value, program_.groups());
    }
    const int width = placement_.width(t.from);
    if (t.index >= 0 && t.index < width) return {};
    return fmt::format("replica {} is none of the last stage's {} replicas", t.index, width);
  }

  [[nodiscard]] std::pair<Rank, Rank> ends_of(const Tag& t) const {
    if (t.payload == Payload::loss) {
      return {placement_.ranks[t.from.index()][static_cast<std::size_t>(t.index)], placement_.ranks[0][0]};
    }
    return {placement_.rank_of(t.from, t.micro_batch), placement_.rank_of(t.to, t.micro_batch)};
  }

  const LoweredProgram& program_;
  const Placement& placement_;
  const std::vector<Group>& groups_;
  Rank rank_;
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
    for (const auto& replicas : program.placement.ranks) {
      steps += static_cast<std::int64_t>(replicas.size()) * program.groups();
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
    const RankShape shape(program, groups, Rank{r});
    for (std::size_t i = 0; i < program.ranks[r].size() && !findings.full(); ++i) {
      const Action& action = program.ranks[r][i];
      std::string wrong = shape.wrong(action);
      if (wrong.empty()) continue;
      const Place here{static_cast<std::int32_t>(r), static_cast<std::int32_t>(i)};
      findings.add(shape.kind(action), fmt::format("{}: {}", name(program, here), wrong));
      good = false;
    }
  }
  return good;
}

}  // namespace stagecraft::checker
