#include "test/bench/host_step/meter.h"

#include "test/support/count_allocations.h"

#include <algorithm>
#include <ctime>
#include <utility>

namespace stagecraft::test {

namespace {

double processor_us() {
  std::timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) * 1e-3;
}

double own_us = 0;  // of the meter, in each of the host's intervals

}  // namespace

void Meter::calibrate() {
  constexpr int kIntervals = 1000;
  own_us = 0;
  double least = 1e9;
  for (int k = 0; k < 50; ++k) {
    here().begin();
    for (int i = 0; i < kIntervals; ++i) const As device(Who::device);
    least = std::min(least, here().end().us / kIntervals);
  }
  own_us = least;
}

Meter& Meter::here() {
  thread_local Meter its;
  return its;
}

Meter::Share& Meter::Share::operator+=(const Share& other) {
  us += other.us;
  allocations += other.allocations;
  calls += other.calls;
  return *this;
}

void Meter::begin() {
  shares_ = {};
  launches_ = 0;
  last_us_ = processor_us();
  last_allocations_ = own_allocations();
}

Meter::Reading Meter::end() {
  charge();
  const Share& host = share_of(Who::host);
  return {host.us, host.allocations, host.calls, launches_};
}

void Meter::charge() {
  const double now = processor_us();
  const std::size_t allocations = own_allocations();
  const Share passed{now - std::exchange(last_us_, now) - own_us,
                     allocations - std::exchange(last_allocations_, allocations), 0};
  const Who who = working_.back();
  (who == Who::host && polling_ ? turn_ : share_of(who)) += passed;
}

void Meter::settle_turn() {
  charge();
  share_of(std::exchange(of_use_, false) ? Who::host : Who::waiting) += std::exchange(turn_, {});
}

void Meter::turn() {
  if (polling_) settle_turn();
}

Meter::As::As(Who who) {
  Meter& meter = here();
  meter.charge();
  meter.working_.push_back(who);
}

Meter::As::~As() {
  Meter& meter = here();
  meter.charge();
  meter.working_.pop_back();
}

Meter::Polling::Polling(bool works) : was_on_(here().polling_), was_of_use_(here().of_use_) {
  Meter& meter = here();
  meter.charge();
  if (was_on_) meter.settle_turn();
  meter.polling_ = true;
  meter.of_use_ = works;
}

Meter::Polling::~Polling() {
  Meter& meter = here();
  meter.settle_turn();
  meter.polling_ = was_on_;
  meter.of_use_ = was_of_use_;
}

}  // namespace stagecraft::test
