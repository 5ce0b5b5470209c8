#include "schedules/synthesis/slot_surplus.h"

#include "schedules/lowering.h"

#include <algorithm>
#include <tuple>

namespace stagecraft::synthesis {

SlotSurplus::SlotSurplus(const Problem& problem)
    : problem_(problem),
      transfers_(into(problem.stages(), MicroBatch{0})),
      channels_(2 * problem.seats().size()),
      windows_(channels_.size()),
      clock_(static_cast<std::size_t>(problem.ranks())),
      next_(clock_.size()),
      computed_(clock_.size()) {
  static_assert(LoweringOptions{}.sends_in_flight == std::tuple_size_v<decltype(Window::sends)>);
  for (int s = 0; s < problem.stages(); ++s) {
    for (int i = 0; i < problem.micro_batches(); ++i) {
      const MicroBatch mb{i};
      for (const std::size_t kind : {0, 1}) {
        const int from = kind == 0 ? s - 1 : s + 1;
        if (from < 0 || from >= problem.stages() || problem.hand_off(StageId{from}, StageId{s}, mb)) continue;
        Transfer& transfer = transfers_[into(s, mb) + kind];
        transfer.travels = true;
        transfer.channel = 2 * problem.seat_of(StageId{s}, mb) + kind;
        transfer.number = channels_[transfer.channel].transfers++;
        most_transfers_ = std::max(most_transfers_, channels_[transfer.channel].transfers);
      }
    }
  }
}

int SlotSurplus::of(const Orders& orders) {
  constexpr int usual = LoweringOptions{}.extra_slots;
  count_held(orders);
  const auto now = time(orders, usual);
  if (usual >= most_transfers_ || (now && !held_up_)) return usual;
  const auto best = time(orders, most_transfers_);
  if (!best || now == best) return usual;
  int low = usual + 1;
  int high = most_transfers_;
  while (low < high) {
    const int middle = low + (high - low) / 2;
    if (time(orders, middle) == best) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return high;
}

void SlotSurplus::count_held(const Orders& orders) {
  for (Channel& channel : channels_) channel.held = channel.reading = 0;
  for (const Order& order : orders) {
    for (const Compute& c : order) {
      const std::size_t arriving = into(c.stage.value, c.micro_batch);
      const auto read = [&](std::size_t transfer) {
        if (!transfers_[transfer].travels) return;
        Channel& channel = channels_[transfers_[transfer].channel];
        channel.held = std::max(channel.held, ++channel.reading);
      };
      const auto release = [&](std::size_t transfer) {
        if (transfers_[transfer].travels) --channels_[transfers_[transfer].channel].reading;
      };
      if (c.op == Op::forward) read(arriving);
      if (is_input_part(c.op)) read(arriving + 1);
      if (is_weight_part(c.op)) release(arriving), release(arriving + 1);
    }
  }
}

std::optional<SlotSurplus::Ticks> SlotSurplus::time(const Orders& orders, int surplus) {
  for (Transfer& transfer : transfers_) transfer.sent = -1;
  for (Channel& channel : channels_) {
    channel.slots = channel.held + surplus;
    channel.released.clear();
  }
  std::fill(windows_.begin(), windows_.end(), Window{});
  std::fill(clock_.begin(), clock_.end(), 0);
  std::fill(next_.begin(), next_.end(), 0);
  std::fill(computed_.begin(), computed_.end(), 0);
  held_up_ = false;
  // Up and down the ranks in turn: activations go one way, gradients the other.
  for (bool moved = true, up = true; moved; up = !up) {
    moved = false;
    for (std::size_t i = 0; i < orders.size(); ++i) {
      const std::size_t r = up ? i : orders.size() - 1 - i;
      while (next_[r] < orders[r].size() && act(r, orders[r][next_[r]])) moved = true;
    }
  }
  for (std::size_t r = 0; r < orders.size(); ++r) {
    if (next_[r] < orders[r].size()) return std::nullopt;
  }
  return *std::max_element(clock_.begin(), clock_.end());
}

/// Carries out the computation as far as it can be. False when nothing moves.
bool SlotSurplus::act(std::size_t rank, const Compute& c) {
  const bool before = computed_[rank] != 0;
  if (!before && !compute(rank, c)) return false;
  computed_[rank] = 1;
  if (!send(rank, c)) return !before;
  computed_[rank] = 0;
  ++next_[rank];
  return true;
}

bool SlotSurplus::compute(std::size_t rank, const Compute& c) {
  Ticks& now = clock_[rank];
  const std::size_t arriving = into(c.stage.value, c.micro_batch);
  const Transfer& needed = transfers_[is_input_part(c.op) ? arriving + 1 : arriving];
  if (c.op != Op::backward_weight && needed.travels) {
    const Ticks free = posted(needed);
    if (free < 0 || needed.sent < 0) return false;
    now = std::max(now, needed.sent);
    held_up_ = held_up_ || free > now;
    now = std::max(now, free);
  }
  now += c.op == Op::backward ? 2 : 1;
  if (is_weight_part(c.op)) {
    for (const std::size_t read : {arriving, arriving + 1}) {
      if (transfers_[read].travels) channels_[transfers_[read].channel].released.push_back(now);
    }
  }
  return true;
}

/// False while too many sends before it have found no slot.
bool SlotSurplus::send(std::size_t rank, const Compute& c) {
  const bool down = c.op == Op::forward;
  if (down ? c.stage == problem_.last_stage() : !is_input_part(c.op) || c.stage.value == 0) return true;
  const std::size_t sent =
      down ? into(c.stage.value + 1, c.micro_batch) : into(c.stage.value - 1, c.micro_batch) + 1;
  if (!transfers_[sent].travels) return true;
  Window& window = windows_[2 * problem_.seat_of(c.stage, c.micro_batch) + (down ? 0 : 1)];
  Ticks& now = clock_[rank];
  if (window.count == window.sends.size()) {
    const Ticks taken = posted(transfers_[window.sends.front()]);
    if (taken < 0) return false;
    held_up_ = held_up_ || taken > now;
    now = std::max(now, taken);
    std::copy(window.sends.begin() + 1, window.sends.end(), window.sends.begin());
    --window.count;
  }
  transfers_[sent].sent = now;
  window.sends[window.count++] = sent;
  return true;
}

SlotSurplus::Ticks SlotSurplus::posted(const Transfer& transfer) const {
  const Channel& channel = channels_[transfer.channel];
  if (transfer.number < channel.slots) return 0;
  const auto release = static_cast<std::size_t>(transfer.number - channel.slots);
  return release < channel.released.size() ? channel.released[release] : -1;
}

}  // namespace stagecraft::synthesis
