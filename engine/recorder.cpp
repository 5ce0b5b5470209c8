#include "engine/recorder.h"

#include <algorithm>

namespace stagecraft {

void Recorder::record(const Action& action, std::int64_t step, Seconds begin, Seconds end) {
  newest_ = std::max(newest_, step);
  events_.push_back({.rank = rank_,
                     .lane = Event::Lane::compute,
                     .action = action,
                     .begin = begin,
                     .end = end,
                     .step = static_cast<int>(step)});
  if (events_.size() < forget_at_) return;
  forget_old_steps();
  forget_at_ = std::max<std::size_t>(4096, 2 * events_.size());
  events_.reserve(forget_at_);
}

void Recorder::forget_old_steps() const {
  std::erase_if(events_, [&](const Event& event) { return event.step + steps_ <= newest_; });
}

const std::vector<Event>& Recorder::events() const {
  forget_old_steps();
  return events_;
}

}  // namespace stagecraft
