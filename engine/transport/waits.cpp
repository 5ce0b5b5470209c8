#include "engine/transport/waits.h"

#include "base/error.h"
#include "engine/transport/wait_error.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <vector>

namespace stagecraft {
namespace {

using transport::bound_key;
using transport::gave_up_silent;
using transport::timed_out;

/// Time for a rank that failed to tell its reason before its process is called gone. It has sent the reason before
/// it ended.
constexpr Seconds kGrace{1};
/// Even a short timeout_s calls nobody silent whose machine is busy for a moment.
constexpr Seconds kLeastSilence{10};
constexpr Seconds kLongestUntilNote{60};

}  // namespace

std::vector<double> transport::numbers_of(const TransportOptions& options) {
  return {options.timeout.value,          options.synchronous_sends ? 1.0 : 0.0,
          options.start_up_timeout.value, options.save_timeout.value,
          options.timeout_steps,          options.timeout_pause.value};
}

TransportOptions transport::options_from(const std::vector<double>& numbers, TransportOptions own) {
  own.timeout = Seconds{numbers.at(0)};
  own.synchronous_sends = numbers.at(1) != 0;
  own.start_up_timeout = Seconds{numbers.at(2)};
  own.save_timeout = Seconds{numbers.at(3)};
  own.timeout_steps = numbers.at(4);
  own.timeout_pause = Seconds{numbers.at(5)};
  return own;
}

Waits::Waits(Rank rank, const TransportOptions& options, std::shared_ptr<Signs> signs)
    : rank_(rank), options_(options), signs_(std::move(signs)) {
  enter(Phase::step);
}

void Waits::enter(Phase phase) {
  phase_ = phase;
  if (signs_) signs_->show(phase_, /*waits=*/false);
}

Seconds Waits::bound() const {
  switch (phase_) {
    case Phase::start_up:
      return std::max(options_.timeout, options_.start_up_timeout);
    case Phase::step:
      return std::max(options_.timeout, predicted_ * kSteps);
    case Phase::save:
      return std::max(options_.timeout, options_.save_timeout);
    case Phase::spare:
      return Seconds{std::numeric_limits<double>::infinity()};
  }
  return options_.timeout;
}

void Waits::step_took(Seconds time) {
  slowest_ = std::max(slowest_, time);
  ++measured_;
}

Seconds Waits::measured_bound() const {
  if (phase_ != Phase::step || measured_ < kMeasured || options_.timeout_steps <= 0) {
    return Seconds{std::numeric_limits<double>::infinity()};
  }
  return slowest_ * options_.timeout_steps + options_.timeout_pause;
}

std::string Waits::measured_text() const {
  return fmt::format(
      "{:g} times the slowest of {} steps, {:.3g} s, and {:g} s: comms.timeout_steps and timeout_pause_s",
      options_.timeout_steps, measured_, slowest_.value, options_.timeout_pause.value);
}

Wait::~Wait() {
  if (shown_) waits_.signs_->show(waits_.phase_, /*waits=*/false);
}

void Wait::check(const std::function<std::string()>& what) {
  waits_.pulse_.beat();
  const Seconds spent = spent_.read();
  const Seconds bound = waits_.bound();
  if (spent > bound) {
    throw PeerError(
        timed_out(waits_.rank_, what(), age(), bound, bound_key(waits_.phase_), waits_.signs_.get()));
  }
  if (spent < next_reading_) return;
  read_signs(spent, what);
  next_reading_ = spent + Seconds{0.5};
}

Seconds Wait::age() const {
  return Seconds{std::chrono::duration<double>(Stopwatch::Clock::now() - begun_).count()};
}

void Wait::read_signs(Seconds spent, const std::function<std::string()>& what) {
  Signs* const signs = waits_.signs_.get();
  if (signs != nullptr && !shown_) {
    signs->show(waits_.phase_, /*waits=*/true);
    shown_ = true;
  }
  const Seconds measured = waits_.measured_bound();
  bool all_in_step =
      signs != nullptr;  // and alive: none of them pauses for a reason that has a bound of its own
  for (int r = 0; signs != nullptr && r < signs->world(); ++r) {
    if (r == waits_.rank_.value) continue;
    const Sign sign = signs->of(Rank{r});
    const bool in_step = sign.phase == Phase::step;
    const bool short_of_steps = in_step && measured < waits_.options_.timeout;
    const Seconds longest = std::max(short_of_steps ? measured : waits_.options_.timeout, kLeastSilence);
    const bool gone = sign.life == Sign::Life::gone && sign.silence > kGrace;
    const bool silent = sign.life == Sign::Life::silent && sign.silence > longest;
    if (gone || silent) {
      throw PeerError(gave_up_silent(waits_.rank_, what(), Rank{r}, sign,
                                     short_of_steps ? waits_.measured_text() : bound_key(Phase::step)));
    }
    all_in_step = all_in_step && in_step && sign.life == Sign::Life::alive;
  }
  if (all_in_step && spent > measured) {
    throw PeerError(timed_out(waits_.rank_, what(), age(), measured, waits_.measured_text(), signs));
  }
  if (noted_ || spent < std::min(waits_.bound() / 4, kLongestUntilNote)) return;
  noted_ = true;
  if (waits_.note_) {
    waits_.note_(fmt::format("{} has taken {:.0f} s{}", what(), spent.value,
                             transport::describe_others(waits_.rank_, signs)));
  }
}

}  // namespace stagecraft
