#include "schedules/repair/repair.h"

#include "schedules/lowering/lowering.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <set>
#include <utility>

namespace stagecraft {
namespace {

using Work = std::pair<StageId, MicroBatch>;

bool loads_data(const ProgramHeader& header, const Action& action) {
  return action.op == Op::forward && action.micro_batch.valid() &&
         action.micro_batch.value < header.micro_batches() && header.loads(action.stage);
}

/// Loads of one rank: each once, before its forward.
void repair_loads(const ProgramHeader& header, std::size_t rank, std::vector<Action>& list,
                  std::vector<std::string>& changes) {
  std::set<Work> loaded;
  std::set<Work> loaded_late;  // their loads stand behind the forward
  std::vector<Action> repaired;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Action& action = list[i];
    const Work work{action.stage, action.micro_batch};
    if (action.op == Op::load && !loaded.insert(work).second) {
      if (!loaded_late.erase(work)) {
        changes.push_back(fmt::format("rank {}: a second {} is dropped", rank, describe_action(action)));
      }
      continue;
    }
    if (loads_data(header, action) && loaded.insert(work).second) {
      const bool late =
          std::any_of(list.begin() + static_cast<std::ptrdiff_t>(i), list.end(), [&](const Action& a) {
            return a.op == Op::load && Work{a.stage, a.micro_batch} == work;
          });
      if (late) loaded_late.insert(work);
      Action load{
          .op = Op::load, .stage = action.stage, .micro_batch = action.micro_batch, .group = action.group};
      changes.push_back(fmt::format("rank {}: the {} is {} its forward", rank, describe_action(load),
                                    late ? "moved before" : "added before"));
      repaired.push_back(load);
    }
    repaired.push_back(action);
  }
  list = std::move(repaired);
}

/// What is done once per group.
void merge_doubles(std::size_t rank, std::vector<Action>& list, std::vector<std::string>& changes) {
  std::set<Action> seen;
  std::erase_if(list, [&](const Action& action) {
    const bool once = action.op == Op::reduce || action.op == Op::tie || action.op == Op::agree_norm ||
                      action.op == Op::step || action.op == Op::report_loss;
    if (!once || seen.insert(action).second) return false;
    changes.push_back(fmt::format("rank {}: a second {} is dropped", rank, describe_action(action)));
    return true;
  });
}

ScheduleProgram without_transfers(const LoweredProgram& program) {
  ScheduleProgram schedule{program, {}};
  for (const auto& list : program.ranks) {
    auto& plain = schedule.ranks.emplace_back();
    for (Action action : list) {
      if (is_transfer(action.op) || action.op == Op::release) continue;
      action.slot = Slot{};
      plain.push_back(action);
    }
  }
  return schedule;
}

std::map<ChannelKey, int> slots_by_channel(const LoweredProgram& program, std::size_t rank) {
  std::map<ChannelKey, int> counts;
  for (const SlotInfo& slot : program.slots[rank]) ++counts[boundary_key(slot)];
  return counts;
}

std::string name_of(const ChannelKey& channel) {
  return fmt::format("{} from stage {} to stage {}", enum_name(channel.payload), channel.from.value,
                     channel.to.value);
}

/// How often a rank does what with a tag, and how many actions of the schedule stand before the first time.
struct Done {
  int times = 0;
  std::size_t work_before = 0;
};
using Transfers = std::map<std::pair<Op, Tag>, Done>;

Transfers transfers_of(const std::vector<Action>& list) {
  Transfers transfers;
  std::size_t work = 0;
  for (const Action& action : list) {
    if (!is_transfer(action.op)) {
      work += action.op == Op::release ? 0 : 1;
      continue;
    }
    Done& done = transfers[{action.op, action.tag}];
    if (done.times++ == 0) done.work_before = work;
  }
  return transfers;
}

/// What became of one kind of transfer action of a channel.
struct Difference {
  int merged = 0, added = 0, dropped = 0, earlier = 0, later = 0;
};

/// Of what is done with transfers, in the ops' order.
constexpr std::array kPlurals{"posts of receives", "waits for receives", "sends", "waits for sends"};

const char* plural_of(Op op) { return kPlurals.at(to_size(op) - to_size(Op::post_receive)); }

void tell_transfers(std::size_t rank, const Transfers& before, const Transfers& after,
                    std::vector<std::string>& changes) {
  std::map<std::pair<Op, ChannelKey>, Difference> differences;
  const auto of = [&](const std::pair<Op, Tag>& key) -> Difference& {
    return differences[{key.first, {key.second.payload, key.second.from, key.second.to}}];
  };
  for (const auto& [key, done] : before) {
    const auto now = after.find(key);
    if (now == after.end()) {
      of(key).dropped += done.times;
      continue;
    }
    of(key).merged += done.times - 1;
    of(key).earlier += now->second.work_before < done.work_before ? 1 : 0;
    of(key).later += now->second.work_before > done.work_before ? 1 : 0;
  }
  for (const auto& [key, done] : after) of(key).added += before.contains(key) ? 0 : 1;
  for (const auto& [key, d] : differences) {
    for (const auto& [count, what] :
         std::array{std::pair{d.merged, "repeated, and merged with the first"}, std::pair{d.added, "added"},
                    std::pair{d.dropped, "dropped: the program has no such transfer here"},
                    std::pair{d.earlier, "earlier"}, std::pair{d.later, "later"}}) {
      if (count == 0) continue;
      changes.push_back(fmt::format("rank {}: {} of {}: {} {}", rank, plural_of(key.first),
                                    name_of(key.second), count, what));
    }
  }
}

void tell_slots(const LoweredProgram& before, const LoweredProgram& after,
                std::vector<std::string>& changes) {
  for (std::size_t r = 0; r < after.ranks.size(); ++r) {
    auto had = slots_by_channel(before, r);
    const auto has = slots_by_channel(after, r);
    for (const auto& [channel, count] : has) {
      const int slots = std::exchange(had[channel], count);
      if (slots == count) continue;
      changes.push_back(
          fmt::format("rank {}: {} slots for {} instead of {}", r, count, name_of(channel), slots));
    }
    for (const auto& [channel, count] : had) {
      if (has.contains(channel)) continue;
      changes.push_back(fmt::format("rank {}: no slots for {} instead of {}", r, name_of(channel), count));
    }
  }
}

void judge(Repair& repair, const TransportRules& rules, const CostTable* costs) {
  repair.proof = check(repair.program, costs, std::nullopt, rules);
  if (repair.proof.accepted()) return;
  const auto circle = std::find_if(repair.proof.findings.begin(), repair.proof.findings.end(),
                                   [](const Finding& f) { return f.kind == Finding::Kind::deadlock; });
  repair.why_not = circle != repair.proof.findings.end()
                       ? "the order of computation itself waits in a circle: " + circle->message
                       : "the order of computation must change, or what is computed: " +
                             repair.proof.findings.front().message;
}

bool can_be_lowered(const LoweredProgram& program) {
  try {
    validate_header(program);
  } catch (const InputError&) {
    return false;
  }
  const auto world = to_size(program.placement.world());
  return program.ranks.size() == world && program.slots.size() == world;
}

/// With the slots the program has, if those suffice.
LoweredProgram lay_anew(const LoweredProgram& before, const ScheduleProgram& schedule,
                        const TransportRules& rules, const CostTable* costs) {
  LoweringOptions options{.rules = rules, .costs = costs};
  for (std::size_t r = 0; r < before.ranks.size(); ++r) {
    for (const auto& [channel, count] : slots_by_channel(before, r)) {
      options.channels.push_back(
          {.rank = Rank{r}, .channel = {channel.payload, channel.from, channel.to}, .slots = count});
    }
  }
  try {
    LoweredProgram lowered = lower(schedule, options);
    if (check(lowered, nullptr, std::nullopt, rules).accepted()) return lowered;
  } catch (const RefusedError&) {  // fewer than a channel reads at once
  }
  return lower(schedule, {.rules = rules, .costs = costs});
}

}  // namespace

Repair repair(const ScheduleProgram& program, const TransportRules& rules, const CostTable* costs) {
  Repair repair{.schedule = program};
  for (std::size_t r = 0; r < program.ranks.size(); ++r) {
    merge_doubles(r, repair.schedule.ranks[r], repair.changes);
    repair_loads(program, r, repair.schedule.ranks[r], repair.changes);
  }
  repair.program = lower(repair.schedule, {.rules = rules, .costs = costs});
  judge(repair, rules, costs);
  return repair;
}

Repair repair(const LoweredProgram& program, const TransportRules& rules, const CostTable* costs) {
  Repair repair{.program = program, .proof = check(program, costs, std::nullopt, rules)};
  if (!can_be_lowered(program)) {
    repair.why_not = "there is no such program: " + repair.proof.findings.front().message;
    return repair;
  }
  const ScheduleProgram schedule = without_transfers(program);
  if (repair.proof.accepted()) {
    repair.schedule = schedule;
    return repair;
  }
  repair = stagecraft::repair(schedule, rules, costs);
  repair.program = lay_anew(program, repair.schedule, rules, costs);
  for (std::size_t r = 0; r < program.ranks.size(); ++r) {
    tell_transfers(r, transfers_of(program.ranks[r]), transfers_of(repair.program.ranks[r]), repair.changes);
  }
  tell_slots(program, repair.program, repair.changes);
  judge(repair, rules, costs);
  return repair;
}

}  // namespace stagecraft
