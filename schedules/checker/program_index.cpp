#include "schedules/checker/program_index.h"

#include <fmt/format.h>

namespace stagecraft::checker {

void Findings::add(Finding::Kind kind, std::string message, std::vector<std::string> cycle) {
  if (!full()) list_.push_back({kind, std::move(message), std::move(cycle)});
}

ProgramIndex::ProgramIndex(const LoweredProgram& well_formed_program, Findings& findings)
    : program_(well_formed_program),
      findings_(findings),
      group_of_(program_.groups_by_micro_batch()),
      holders_(stage_replicas(program_.placement, micro_batches())),
      numbers_(program_),
      transfers_(numbers_.size()) {
  for (const int size : program_.group_sizes) begin_of_.push_back(begin_of_.back() + size);
  for (std::size_t h = 0; h < holders_.size(); ++h) {
    if (holders_[h].replica == 0) first_holder_.push_back(h);
  }
  std::size_t rows = 0;
  for (int s = 0; s < stages(); ++s) load_row_.push_back(program_.loads(StageId{s}) ? rows++ : 0);
  loads_.resize(rows * group_of_.size());
  work_.resize(static_cast<std::size_t>(stages()) * group_of_.size());
  updates_.resize(by_group(holders_.size(), Group{0}));
  reports_.resize(updates_.size());
  agreements_.resize(by_group(program_.ranks.size(), Group{0}));
  ties_.resize(agreements_.size() * program_.ties.size());
  program_.each_action([&](ActionPlace here, const Action& action) { place(action, here); });
}

void ProgramIndex::place(const Action& action, ActionPlace here) {
  const auto work = [&]() -> MicroBatchPlaces& {
    return work_[action.stage.index() * group_of_.size() + action.micro_batch.index()];
  };
  const auto holder = [&] { return holder_on(action.stage, here.rank); };
  const auto update = [&]() -> Update& { return updates_[by_group(holder(), action.group)]; };
  const auto transfer = [&]() -> Transfer& { return transfers_[numbers_.of(action.tag)]; };
  switch (action.op) {
    case Op::load:
      return once(loads_[load_index(action.stage, action.micro_batch)], here);
    case Op::forward:
      return once(work().forward, here);
    case Op::recompute:
      return once(work().recompute, here);
    case Op::backward_input:
      return once(work().input_part, here);
    case Op::backward_weight:
      return once(work().weight_part, here);
    case Op::backward: {
      MicroBatchPlaces& both = work();
      once(both.input_part, here);
      if (both.input_part == here) once(both.weight_part, here);
      return;
    }
    case Op::reduce:
      return once(update().reduce, here);
    case Op::tie:
      return once(ties_[by_group(tie_row(here.rank, action.tie), action.group)], here);
    case Op::step:
      return once(update().step, here);
    case Op::agree_norm:
      return once(agreements_[by_group(here.rank.index(), action.group)], here);
    case Op::report_loss:
      return once(reports_[by_group(holder(), action.group)], here);
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

void ProgramIndex::once(ActionPlace& known, ActionPlace here) {
  if (!known.found()) {
    known = here;
    return;
  }
  const auto kind = is_transfer(action(here).op) ? Finding::Kind::matching : Finding::Kind::completeness;
  findings_.add(kind, fmt::format("{}: already done at [{}] by {}; expected once", name(here), known.at,
                                  describe_action(action(known))));
}

std::vector<TieId> ProgramIndex::ties_of(StageId stage) const {
  std::vector<TieId> ties;
  for (std::size_t k = 0; k < program_.ties.size(); ++k) {
    if (program_.holds(stage, TieId{k})) ties.emplace_back(k);
  }
  return ties;
}

std::size_t ProgramIndex::holder_on(StageId stage, Rank rank) const {
  std::size_t holder = first_holder_[stage.index()];
  while (holders_[holder].rank != rank) ++holder;
  return holder;
}

std::vector<MicroBatch> ProgramIndex::micro_batches_of(std::size_t holder) const {
  std::vector<MicroBatch> own;
  for (int k = 0; k < holders_[holder].count; ++k) own.push_back(holders_[holder].micro_batch(k));
  return own;
}

const Transfer& ProgramIndex::transfer(const Tag& tag) const {
  static const Transfer none;
  const std::size_t number = numbers_.of(tag);
  return number == transfers_.size() ? none : transfers_[number];
}

}  // namespace stagecraft::checker
