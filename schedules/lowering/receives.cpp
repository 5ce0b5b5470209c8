#include "schedules/lowering/receives.h"

#include <algorithm>

namespace stagecraft {

TransferScan::TransferScan(const ProgramHeader& header)
    : header_(header),
      numbers_(header),
      micro_batches_(header.micro_batches()),
      last_stage_(header.placement.stages() - 1),
      receive_of_(numbers_.size()) {}

void TransferScan::scan(Rank rank, std::span<const Action> list, RankTransfers& transfers) {
  rank_ = rank;
  out_ = &transfers;
  const auto& reporters = header_.placement.ranks.back();
  const auto mine = std::find(reporters.begin(), reporters.end(), rank);
  reporter_ = mine == reporters.end() ? -1 : static_cast<std::int32_t>(mine - reporters.begin());
  transfers.receives.clear();
  transfers.channels.clear();
  transfers.reads.clear();
  transfers.sends.clear();
  transfers.ends.clear();
  transfers.actions.resize(list.size() + 1);
  const auto here = [&] {
    return RankTransfers::Touched{.reads_begin = static_cast<std::uint32_t>(transfers.reads.size()),
                                  .sends_begin = static_cast<std::uint32_t>(transfers.sends.size()),
                                  .ends_begin = static_cast<std::uint32_t>(transfers.ends.size())};
  };
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Action& action = list[i];
    transfers.actions[i] = here();
    if (!is_within(action)) continue;
    index_ = static_cast<std::int32_t>(i);
    read(action);
    send(action);
    end(action);
  }
  transfers.actions.back() = here();
  count_held();
}

bool TransferScan::is_within(const Action& action) const {
  if (is_compute(action.op)) {
    return action.stage.valid() && action.stage <= last_stage_ && action.micro_batch.valid() &&
           action.micro_batch.value < micro_batches_;
  }
  if (action.op == Op::report_loss) return action.group.valid() && action.group.value < header_.groups();
  return true;
}

/// Stages on the same rank hand over in memory.
void TransferScan::send(const Action& action) {
  const StageId stage = action.stage;
  const MicroBatch mb = action.micro_batch;
  const auto add = [&](std::size_t transfer) { out_->sends.push_back(static_cast<std::uint32_t>(transfer)); };
  if (action.op == Op::forward) {
    if (stage < last_stage_ && !is_here(StageId{stage.value + 1}, mb)) add(numbers_.activation(stage, mb));
    each_skip(&Skip::from, stage, [&](std::size_t k) {
      if (!is_here(header_.skips[k].to, mb)) add(numbers_.skipping(Payload::activation, k, mb));
    });
  } else if (is_input_part(action.op)) {
    if (header_.sends_gradient(stage) && !is_here(StageId{stage.value - 1}, mb))
      add(numbers_.gradient(stage, mb));
    each_skip(&Skip::to, stage, [&](std::size_t k) {
      const StageId from = header_.skips[k].from;
      if (header_.has_backward(from) && !is_here(from, mb)) add(numbers_.skipping(Payload::gradient, k, mb));
    });
  } else if (action.op == Op::report_loss && reporter_ >= 0 && rank_ != header_.placement.ranks[0][0]) {
    add(numbers_.loss(action.group, reporter_));
  }
}

void TransferScan::end(const Action& action) {
  if (!is_input_part(action.op)) return;
  const auto add = [&](std::size_t transfer) { out_->ends.push_back(static_cast<std::uint32_t>(transfer)); };
  if (action.stage < last_stage_) add(numbers_.activation(action.stage, action.micro_batch));
  each_skip(&Skip::from, action.stage,
            [&](std::size_t k) { add(numbers_.skipping(Payload::activation, k, action.micro_batch)); });
}

void TransferScan::read(const Action& action) {
  const StageId stage = action.stage;
  const StageId before{stage.value - 1};
  const StageId behind{stage.value + 1};
  const MicroBatch mb = action.micro_batch;
  if (is_compute(action.op)) {
    if (stage.value > 0 && !is_here(before, mb)) {
      note(numbers_.activation(before, mb), {Payload::activation, before, stage, 0});
    }
    each_skip(&Skip::to, stage, [&](std::size_t k) {
      const StageId from = header_.skips[k].from;
      if (!is_here(from, mb)) {
        note(numbers_.skipping(Payload::activation, k, mb), {Payload::activation, from, stage, 0});
      }
    });
    if (!is_input_part(action.op) && !is_weight_part(action.op)) return;
    if (stage < last_stage_ && !is_here(behind, mb)) {
      note(numbers_.gradient(behind, mb), {Payload::gradient, behind, stage, 0});
    }
    each_skip(&Skip::from, stage, [&](std::size_t k) {
      const StageId to = header_.skips[k].to;
      if (!is_here(to, mb)) {
        note(numbers_.skipping(Payload::gradient, k, mb), {Payload::gradient, to, stage, 0});
      }
    });
  } else if (action.op == Op::report_loss && rank_ == header_.placement.ranks[0][0]) {
    read_losses(action.group);
  }
}

void TransferScan::read_losses(Group group) {
  const std::int32_t replicas = header_.placement.replicas(last_stage_);
  const std::int32_t first = header_.first_of(group).value;
  const std::int32_t size = header_.group_sizes[group.index()];
  for (std::int32_t replica = 0; replica < replicas; ++replica) {
    // Of `size` micro-batches in a row the replica has one if its next one after `first` is near enough.
    const bool reports = (replica - first % replicas + replicas) % replicas < size;
    if (!reports || replica == reporter_) continue;
    note(numbers_.loss(group, replica), {Payload::loss, last_stage_, StageId{0}, replica});
  }
}

void TransferScan::note(std::size_t transfer, const SlotInfo& info) {
  std::uint32_t& receive = receive_of_[transfer];
  auto& receives = out_->receives;
  if (receive >= receives.size() || receives[receive].transfer != transfer) {
    receive = static_cast<std::uint32_t>(receives.size());
    auto& channels = out_->channels;  // few: two per boundary of a stage held, and the losses
    auto found =
        std::find_if(channels.begin(), channels.end(), [&](const Channel& c) { return c.info == info; });
    if (found == channels.end()) found = channels.insert(channels.end(), Channel{.info = info});
    ++found->transfers;
    receives.push_back({.transfer = static_cast<std::uint32_t>(transfer),
                        .channel = static_cast<std::int32_t>(found - channels.begin()),
                        .first = index_});
  }
  receives[receive].last = index_;
  out_->reads.push_back(static_cast<std::int32_t>(receive));
}

void TransferScan::count_held() {
  auto& channels = out_->channels;
  holding_.assign(channels.size(), 0);
  released_.assign(channels.size(), 0);
  std::int32_t transfers = 0;
  for (Channel& channel : channels) {
    channel.first_release = transfers;
    transfers += channel.transfers;
  }
  out_->releases.resize(static_cast<std::size_t>(transfers));
  std::int32_t releases = 0;
  for (std::size_t i = 0; i + 1 < out_->actions.size(); ++i) {
    const auto here = static_cast<std::int32_t>(i);
    for (const std::int32_t r : out_->read_by(i)) {
      Receive& receive = out_->receives[static_cast<std::size_t>(r)];
      if (receive.first != here) continue;
      const auto c = static_cast<std::size_t>(receive.channel);
      receive.releases_before = releases;
      channels[c].held = std::max(channels[c].held, ++holding_[c]);
    }
    for (const std::int32_t r : out_->read_by(i)) {
      const Receive& receive = out_->receives[static_cast<std::size_t>(r)];
      if (receive.last != here) continue;
      const auto c = static_cast<std::size_t>(receive.channel);
      --holding_[c];
      out_->releases[static_cast<std::size_t>(channels[c].first_release) +
                     static_cast<std::size_t>(released_[c]++)] = ++releases;
    }
  }
}

}  // namespace stagecraft
