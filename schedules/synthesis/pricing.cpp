#include "schedules/synthesis/pricing.h"

#include "schedules/lowering.h"

#include <algorithm>
#include <tuple>

namespace stagecraft::synthesis {
namespace {

constexpr double kUnknown = -1;

}  // namespace

Pricing::Pricing(const Problem& problem)
    : problem_(problem),
      surplus_(problem),
      micro_batches_(static_cast<std::size_t>(problem.micro_batches())),
      travels_(2 * static_cast<std::size_t>(problem.stages()) * micro_batches_, 0),
      seconds_(travels_.size(), 0),
      from_(travels_.size(), 0),
      to_(travels_.size(), 0),
      channels_(2 * problem.seats().size()),
      windows_(2 * problem.seats().size()),
      posted_(travels_.size()),
      arrived_(travels_.size()),
      clock_(static_cast<std::size_t>(problem.ranks())),
      lanes_(clock_.size() * clock_.size()),
      next_(clock_.size()),
      computed_(clock_.size()),
      awake_(clock_.size()),
      begins_(clock_.size()),
      ends_(clock_.size()) {
  const auto connect = [&](StageId from, StageId to, MicroBatch mb, std::size_t transfer, double seconds) {
    if (problem.hand_off(from, to, mb)) return;
    travels_[transfer] = 1;
    seconds_[transfer] = seconds;
    from_[transfer] = problem.seat(from, mb).rank.index();
    to_[transfer] = problem.seat(to, mb).rank.index();
    channels_[2 * problem.seat_of(to, mb) + transfer % 2].transfers.push_back(transfer);
  };
  for (int s = 0; s < problem.stages(); ++s) {
    for (std::size_t i = 0; i < micro_batches_; ++i) {
      const StageId stage{s};
      const MicroBatch mb{i};
      if (s > 0) connect(StageId{s - 1}, stage, mb, activation(s, mb), problem.activation_seconds(stage, mb));
      if (stage < problem.last_stage()) {
        connect(StageId{s + 1}, stage, mb, gradient(s, mb), problem.gradient_seconds(stage, mb));
      }
    }
  }
  for (const Rank rank : problem.placement().ranks[problem.last_stage().index()]) {
    loss_seconds_.push_back(rank == problem.printing_rank() ? 0 : problem.loss_seconds(rank));
  }
}

const Price& Pricing::run(const Orders& orders) {
  static_assert(LoweringOptions{}.sends_in_flight == std::tuple_size_v<decltype(Window::sends)>);
  const int usual = surplus_.of(orders);
  ++runs_;
  extra_slots_ = usual;
  count_held(orders);
  if (!pass(orders, usual)) {
    // As lowering does: as few more slots as make it work, if any number does.
    int low = usual + 1;
    int high = std::max(usual, problem_.micro_batches());
    if (!pass(orders, high)) {
      price_ = {};
      return price_;
    }
    while (low < high) {
      const int middle = low + (high - low) / 2;
      if (pass(orders, middle)) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    pass(orders, high);
    extra_slots_ = high;
  }
  conclude();
  return price_;
}

void Pricing::count_held(const Orders& orders) {
  for (Channel& channel : channels_) channel.held = channel.reading = 0;
  for (std::size_t r = 0; r < orders.size(); ++r) {
    begins_[r].resize(orders[r].size());
    ends_[r].resize(orders[r].size());
    for (const Compute& c : orders[r]) {
      const std::size_t seat = problem_.seat_of(c.stage, c.micro_batch);
      const std::size_t arriving = activation(c.stage.value, c.micro_batch);
      Channel& activations = channels_[2 * seat];
      Channel& gradients = channels_[2 * seat + 1];
      if (c.op == Op::forward && travels_[arriving]) {
        activations.held = std::max(activations.held, ++activations.reading);
      }
      if (is_input_part(c.op) && travels_[arriving + 1]) {
        gradients.held = std::max(gradients.held, ++gradients.reading);
      }
      if (is_weight_part(c.op)) {
        activations.reading -= travels_[arriving];
        gradients.reading -= travels_[arriving + 1];
      }
    }
  }
}

/// Carries the orders out with `surplus` slots beyond those read at once. False when they come to a stand.
bool Pricing::pass(const Orders& orders, int surplus) {
  std::fill(posted_.begin(), posted_.end(), kUnknown);
  std::fill(arrived_.begin(), arrived_.end(), kUnknown);
  std::fill(clock_.begin(), clock_.end(), 0.0);
  std::fill(lanes_.begin(), lanes_.end(), 0.0);
  std::fill(next_.begin(), next_.end(), 0);
  std::fill(computed_.begin(), computed_.end(), 0);
  std::fill(awake_.begin(), awake_.end(), 1);
  std::fill(windows_.begin(), windows_.end(), Window{});
  losses_ = 0;
  for (Channel& channel : channels_) {
    channel.posted = 0;
    for (int k = 0; k < channel.held + surplus; ++k) post_next(channel, 0);
  }
  for (bool going = true; going;) {
    going = false;
    for (std::size_t r = 0; r < orders.size(); ++r) {
      if (!awake_[r]) continue;
      awake_[r] = 0;
      going = true;
      advance(r, orders[r]);
    }
  }
  for (std::size_t r = 0; r < orders.size(); ++r) {
    work_ += static_cast<std::int64_t>(next_[r]);
    if (next_[r] < orders[r].size()) return false;
  }
  return true;
}

void Pricing::advance(std::size_t rank, const Order& order) {
  std::size_t& next = next_[rank];
  for (; next < order.size(); ++next) {
    if (!computed_[rank] && !compute(rank, order[next], next)) return;
    computed_[rank] = 1;
    if (!send(rank, order[next])) return;
    computed_[rank] = 0;
  }
}

/// False when what it needs is not there.
bool Pricing::compute(std::size_t rank, const Compute& c, std::size_t place) {
  double& now = clock_[rank];
  const double before = now;
  const std::size_t seat = problem_.seat_of(c.stage, c.micro_batch);
  const std::size_t arriving = activation(c.stage.value, c.micro_batch);
  const std::size_t needed = is_input_part(c.op) ? arriving + 1 : arriving;
  if (travels_[needed] && arrived_[needed] == kUnknown) return false;
  // A recompute comes before the wait for the gradient.
  if (is_input_part(c.op)) now += problem_.recompute_seconds(c.stage, c.micro_batch);
  const double ready = now;
  if (travels_[needed]) now = std::max(now, arrived_[needed]);
  if (is_input_part(c.op)) {
    // The sent activation goes away with the backward.
    Window& window = windows_[2 * seat];
    const auto end = window.sends.begin() + window.count;
    const auto sent = c.stage < problem_.last_stage()
                          ? std::find(window.sends.begin(), end, activation(c.stage.value + 1, c.micro_batch))
                          : end;
    if (sent != end) {
      now = std::max(now, arrived_[*sent]);
      std::copy(sent + 1, end, sent);
      --window.count;
    }
  }
  begins_[rank][place] = now > ready ? now - (ready - before) : before;
  now += problem_.seconds(c);
  ends_[rank][place] = now;
  if (is_weight_part(c.op)) {
    if (travels_[arriving]) post_next(channels_[2 * seat], now);
    if (travels_[arriving + 1]) post_next(channels_[2 * seat + 1], now);
  }
  return true;
}

/// Sends what the computation made, if it travels. False when an earlier send is not over or the receive is
/// not posted.
bool Pricing::send(std::size_t rank, const Compute& c) {
  const bool down = c.op == Op::forward;
  if (down && c.stage == problem_.last_stage()) send_loss(rank, c);
  if (down ? c.stage == problem_.last_stage() : !is_input_part(c.op) || c.stage.value == 0) return true;
  const std::size_t sent =
      down ? activation(c.stage.value + 1, c.micro_batch) : gradient(c.stage.value - 1, c.micro_batch);
  if (!travels_[sent]) return true;
  double& now = clock_[rank];
  Window& window = windows_[2 * problem_.seat_of(c.stage, c.micro_batch) + (down ? 0 : 1)];
  if (window.count == static_cast<int>(window.sends.size())) {
    const double over = arrived_[window.sends.front()];
    now = std::max(now, over);
    std::copy(window.sends.begin() + 1, window.sends.end(), window.sends.begin());
    --window.count;
  }
  if (posted_[sent] == kUnknown) return false;
  double& lane = lanes_[rank * clock_.size() + to_[sent]];
  lane = std::max({now, posted_[sent], lane}) + seconds_[sent];
  arrived_[sent] = lane;
  window.sends[static_cast<std::size_t>(window.count++)] = sent;
  awake_[to_[sent]] = 1;
  return true;
}

/// The loss leaves with the replica's last forward.
void Pricing::send_loss(std::size_t rank, const Compute& c) {
  const std::size_t width = loss_seconds_.size();
  if (c.micro_batch.index() + width < micro_batches_) return;
  const Rank printing = problem_.printing_rank();
  if (Rank{rank} == printing) return;
  double& lane = lanes_[rank * clock_.size() + printing.index()];
  lane = std::max(clock_[rank], lane) + loss_seconds_[c.micro_batch.index() % width];
  losses_ = std::max(losses_, lane);
}

void Pricing::post_next(Channel& channel, double now) {
  if (channel.posted == channel.transfers.size()) return;
  const std::size_t transfer = channel.transfers[channel.posted++];
  posted_[transfer] = now;
  awake_[from_[transfer]] = 1;
}

/// The flush: replicas wait for each other, and all ranks where the norm is agreed on; then they step, and
/// what is under way ends.
void Pricing::conclude() {
  double sum = 0;
  for (const double end : clock_) sum += end;
  price_.mean_end = sum / static_cast<double>(clock_.size());
  for (const std::vector<Rank>& replicas : problem_.placement().ranks) {
    double latest = 0;
    for (const Rank rank : replicas) latest = std::max(latest, clock_[rank.index()]);
    for (const Rank rank : replicas) clock_[rank.index()] = latest;
  }
  if (problem_.clip())
    std::fill(clock_.begin(), clock_.end(), *std::max_element(clock_.begin(), clock_.end()));
  for (const Seat& seat : problem_.seats()) clock_[seat.rank.index()] += seat.step;
  clock_[problem_.printing_rank().index()] = std::max(clock_[problem_.printing_rank().index()], losses_);
  double makespan = std::max(losses_, *std::max_element(clock_.begin(), clock_.end()));
  for (const Window& window : windows_) {
    for (int i = 0; i < window.count; ++i) {
      makespan = std::max(makespan, arrived_[window.sends[static_cast<std::size_t>(i)]]);
    }
  }
  price_.makespan = makespan;
}

}  // namespace stagecraft::synthesis
