#include "engine/transport/waits.h"

#include "base/error.h"
#include "engine/transport/wait_error.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <vector>

namespace stagecraft {
namespace {

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
  return {options.timeout.value, options.synchronous_sends ? 1.0 : 0.0, options.start_up_timeout.value,
          options.save_timeout.value};
}

TransportOptions transport::options_from(const std::vector<double>& numbers, TransportOptions own) {
  own.timeout = Seconds{numbers.at(0)};
  own.synchronous_sends = numbers.at(1) != 0;
  own.start_up_timeout = Seconds{numbers.at(2)};
  own.save_timeout = Seconds{numbers.at(3)};
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

Wait::~Wait() {
  if (shown_) waits_.signs_->show(waits_.phase_, /*waits=*/false);
}

void Wait::check(const std::function<std::string()>& what) {
  waits_.pulse_.beat();
  const Seconds spent = spent_.read();
  const Seconds bound = waits_.bound();
  if (spent > bound) {
    const Seconds age{std::chrono::duration<double>(Stopwatch::Clock::now() - begun_).count()};
    throw PeerError(timed_out(waits_.rank_, what(), age, bound, waits_.phase_, waits_.signs_.get()));
  }
  if (spent < next_reading_) return;
  read_signs(spent, what);
  next_reading_ = spent + Seconds{0.5};
}

void Wait::read_signs(Seconds spent, const std::function<std::string()>& what) {
  Signs* const signs = waits_.signs_.get();
  if (signs != nullptr && !shown_) {
    signs->show(waits_.phase_, /*waits=*/true);
    shown_ = true;
  }
  for (int r = 0; signs != nullptr && r < signs->world(); ++r) {
    if (r == waits_.rank_.value) continue;
    const Sign sign = signs->of(Rank{r});
    const bool gone = sign.life == Sign::Life::gone && sign.silence > kGrace;
    const bool silent =
        sign.life == Sign::Life::silent && sign.silence > std::max(waits_.options_.timeout, kLeastSilence);
    if (gone || silent) throw PeerError(gave_up_silent(waits_.rank_, what(), Rank{r}, sign));
  }
  if (noted_ || spent < std::min(waits_.bound() / 4, kLongestUntilNote)) return;
  noted_ = true;
  if (waits_.note_) {
    waits_.note_(fmt::format("{} has taken {:.0f} s{}", what(), spent.value,
                             transport::describe_others(waits_.rank_, signs)));
  }
}

}  // namespace stagecraft
