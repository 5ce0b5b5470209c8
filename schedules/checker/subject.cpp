#include "schedules/checker/subject.h"

#include <fmt/format.h>

namespace stagecraft::checker {
namespace {

std::uint64_t key(std::int32_t a, std::int32_t b) {
  return (std::uint64_t{static_cast<std::uint32_t>(a)} << 32U) | static_cast<std::uint32_t>(b);
}

Place found_in(const std::unordered_map<std::uint64_t, Place>& places, std::uint64_t key) {
  const auto found = places.find(key);
  return found == places.end() ? Place{} : found->second;
}

}  // namespace

void Findings::add(Finding::Kind kind, std::string message, std::vector<std::string> cycle) {
  if (!full()) list_.push_back({kind, std::move(message), std::move(cycle)});
}

std::string name(const LoweredProgram& program, Place place) {
  const Action& action =
      program.ranks[static_cast<std::size_t>(place.rank)][static_cast<std::size_t>(place.at)];
  return fmt::format("rank {} [{}] {}", place.rank, place.at, describe_action(action));
}

Subject::Subject(const LoweredProgram& well_formed_program, Findings& findings)
    : program_(well_formed_program), findings_(findings), group_of_(program_.groups_by_micro_batch()) {
  for (const int size : program_.group_sizes) begin_of_.push_back(begin_of_.back() + size);
  for (int s = 0; s < stages(); ++s) {
    first_holder_.push_back(holders_.size());
    for (const Rank rank : program_.placement.ranks[static_cast<std::size_t>(s)]) {
      holders_.push_back({StageId{s}, rank});
    }
  }
  work_.resize(static_cast<std::size_t>(stages()) * group_of_.size());
  if (train()) updates_.resize(holders_.size() * static_cast<std::size_t>(groups()));
  for (std::size_t r = 0; r < program_.ranks.size(); ++r) {
    const auto& list = program_.ranks[r];
    for (std::size_t i = 0; i < list.size(); ++i) {
      place(list[i], {static_cast<std::int32_t>(r), static_cast<std::int32_t>(i)});
    }
  }
}

void Subject::place(const Action& action, Place here) {
  const auto work = [&]() -> Work& {
    return work_[action.stage.index() * group_of_.size() + action.micro_batch.index()];
  };
  const auto holder = [&] { return holder_on(action.stage, Rank{here.rank}); };
  const auto update = [&]() -> Update& {
    return updates_[holder() * static_cast<std::size_t>(groups()) + action.group.index()];
  };
  const auto transfer = [&]() -> Transfer& {
    const auto [entry, fresh] = transfer_of_.try_emplace(action.tag, transfers_.size());
    if (fresh) transfers_.push_back({action.tag, {}, {}, {}, {}});
    return transfers_[entry->second];
  };
  switch (action.op) {
    case Op::load:
      return once(loads_[key(action.stage.value, action.micro_batch.value)], here);
    case Op::forward:
      return once(work().forward, here);
    case Op::recompute:
      return once(work().recompute, here);
    case Op::backward_input:
      return once(work().input_part, here);
    case Op::backward_weight:
      return once(work().weight_part, here);
    case Op::backward: {
      Work& both = work();
      once(both.input_part, here);
      if (both.input_part == here) once(both.weight_part, here);
      return;
    }
    case Op::reduce:
      return once(update().reduce, here);
    case Op::step:
      return once(update().step, here);
    case Op::agree_norm:
      return once(agreements_[key(here.rank, action.group.value)], here);
    case Op::report_loss:
      return once(reports_[key(static_cast<std::int32_t>(holder()), action.group.value)], here);
    case Op::post_receive:
      return once(transfer().post, here);
    case Op::wait_receive:
      return once(transfer().wait, here);
    case Op::start_send:
      return once(transfer().start, here);
    case Op::wait_send:
      return once(transfer().wait_send, here);
    case Op::release:
      return;  // many a slot; the buffer proof follows them
  }
}

void Subject::once(Place& known, Place here) {
  if (!known.found()) {
    known = here;
    return;
  }
  const auto kind = is_transfer(action(here).op) ? Finding::Kind::matching : Finding::Kind::completeness;
  findings_.add(kind, fmt::format("{}: already done at [{}] by {}; expected once", name(here), known.at,
                                  describe_action(action(known))));
}

Rank Subject::rank_of(StageId stage, MicroBatch micro_batch) const {
  return program_.placement.rank_of(stage, micro_batch);
}

std::size_t Subject::holder_on(StageId stage, Rank rank) const {
  std::size_t holder = first_holder_[stage.index()];
  while (holders_[holder].rank != rank) ++holder;
  return holder;
}

std::vector<MicroBatch> Subject::micro_batches_of(std::size_t holder) const {
  const StageId stage = holders_[holder].stage;
  std::vector<MicroBatch> own;
  for (auto mb = static_cast<int>(holder - first_holder_[stage.index()]); mb < micro_batches();
       mb += program_.placement.width(stage)) {
    own.emplace_back(mb);
  }
  return own;
}

Place Subject::load(StageId stage, MicroBatch micro_batch) const {
  return found_in(loads_, key(stage.value, micro_batch.value));
}

Place Subject::report(std::size_t holder, Group group) const {
  return found_in(reports_, key(static_cast<std::int32_t>(holder), group.value));
}

Place Subject::agreement(Rank rank, Group group) const {
  return found_in(agreements_, key(rank.value, group.value));
}

const Transfer* Subject::transfer(const Tag& tag) const {
  const auto found = transfer_of_.find(tag);
  return found == transfer_of_.end() ? nullptr : &transfers_[found->second];
}

}  // namespace stagecraft::checker
