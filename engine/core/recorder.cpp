#include "engine/core/recorder.h"

#include "models/tensors/device_mark.h"

#include <algorithm>
#include <utility>

namespace stagecraft {

Recorder::Recorder(Rank rank, int steps, c10::Device device)
    : rank_(rank), steps_(steps), device_(device), start_(Clock::now()) {
  if (on() && !device.is_cpu()) from_ = mark_of(device, /*timed=*/true);
}

Recorder::Mark Recorder::mark() const {
  if (!device_.is_cpu()) return {{}, mark_of(device_, /*timed=*/true)};
  return {Seconds{std::chrono::duration<double>(Clock::now() - start_).count()}, std::nullopt};
}

void Recorder::record(const Action& action, std::int64_t step, Mark begin, Mark end) {
  newest_ = std::max(newest_, step);
  Event event{.rank = rank_,
              .lane = Event::Lane::compute,
              .action = action,
              .begin = begin.time,
              .end = end.time,
              .step = step};
  if (!device_.is_cpu()) return add(Pending{event, std::move(begin), std::move(end)});
  add(event);
}

void Recorder::add(Pending pending) {
  pending_.push_back(std::move(pending));
  // Without a flush a micro-batch of an old step may come behind all that was told.
  while (!pending_.empty() && is_old(pending_.front().event)) {
    Pending old = std::move(pending_.front());
    pending_.pop_front();
    const bool step_ends = pending_.empty() || pending_.front().event.step != old.event.step;
    if (step_ends && old.end.on_device && old.end.on_device->query()) measure_from(std::move(old.end));
  }
}

void Recorder::record_sum(const Action& action, std::int64_t step, Seconds begin, Seconds end, Bytes bytes) {
  add({.rank = rank_,
       .lane = Event::Lane::send,
       .action = action,
       .begin = begin,
       .end = end,
       .step = step,
       .bytes = bytes});
}

void Recorder::record_spans(const Action& action, std::int64_t step, ReplicaSum::Spans spans) {
  newest_ = std::max(newest_, step);
  const Event event{
      .rank = rank_, .lane = Event::Lane::send, .action = action, .begin = {}, .end = {}, .step = step};
  add(Pending{event, {}, mark(), std::move(spans)});
}

void Recorder::tell_spans(const Pending& sum) const {
  std::vector<ReplicaSum::Span> spans = sum.spans();
  std::ranges::sort(spans, {}, [](const ReplicaSum::Span& span) { return span.begin; });
  const Seconds finished = time_of(sum.end);
  const std::size_t first = events_.size();
  for (const auto& [begin, end, bytes] : spans) {
    if (first < events_.size() && finished + begin <= events_.back().end) {
      events_.back().end = std::max(events_.back().end, finished + end);
      events_.back().bytes += bytes;
      continue;
    }
    Event event = sum.event;
    event.begin = finished + begin;
    event.end = finished + end;
    event.bytes = bytes;
    events_.push_back(event);
  }
}

void Recorder::add(const Event& event) {
  events_.push_back(event);
  if (events_.size() < forget_at_) return;
  forget_old_steps();
  forget_at_ = std::max<std::size_t>(4096, 2 * events_.size());
  events_.reserve(forget_at_);
}

void Recorder::forget_old_steps() const {
  std::erase_if(events_, [&](const Event& event) { return is_old(event); });
}

Seconds Recorder::time_of(const Mark& mark) const {
  if (!mark.on_device) return mark.time;
  constexpr double kMilliseconds = 1e-3;
  return Seconds{from_time_.value + from_->elapsedTime(*mark.on_device) * kMilliseconds};
}

void Recorder::measure_from(Mark mark) const {
  from_time_ = time_of(mark);
  from_ = std::move(mark.on_device);
}

const std::vector<Event>& Recorder::events() const {
  if (!pending_.empty() && pending_.back().end.on_device) {
    pending_.back().end.on_device->synchronize();  // and so is what was before
  }
  for (Pending& pending : pending_) {
    const bool step_ends = !events_.empty() && events_.back().step != pending.event.step;
    if (pending.spans) {
      tell_spans(pending);
    } else {
      pending.event.begin = time_of(pending.begin);
      pending.event.end = time_of(pending.end);
      events_.push_back(pending.event);
    }
    if (step_ends && pending.end.on_device) measure_from(std::move(pending.end));
  }
  pending_.clear();
  forget_old_steps();
  // A sum is recorded at its end, behind actions that began later.
  std::ranges::stable_sort(events_, {}, &Event::begin);
  return events_;
}

}  // namespace stagecraft
