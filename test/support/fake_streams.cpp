#include "test/support/fake_streams.h"

#include "base/error.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace stagecraft::test {

FakeStreams& FakeStreams::here() {
  static thread_local FakeStreams streams;
  return streams;
}

FakeStreams::Id FakeStreams::make() {
  const Id id = static_cast<Id>(streams_.size()) + 1;
  streams_[id];
  return id;
}

void FakeStreams::begin_copy(void* to, std::size_t bytes, std::function<void()> carry_out) {
  Stream& stream = streams_.at(current_);
  STAGECRAFT_CHECK(stream.behind_allocation == allocations_,
                   "a copy begins without waiting for what may still use its memory");
  std::memset(to, 0xFF, bytes);
  stream.copies.push_back(std::move(carry_out));
}

std::size_t FakeStreams::copies_under_way() const {
  std::size_t all = 0;
  for (const auto& [id, stream] : streams_) all += stream.copies.size();
  return all;
}

void FakeStreams::record(Event event, Id stream) {
  Mark& mark = marks_[event];
  mark.stream = stream;
  mark.position = allocations_;
  if (stream == 0) return;
  const Stream& its = streams_.at(stream);
  mark.position = its.over + static_cast<std::int64_t>(its.copies.size());
}

void FakeStreams::wait(Id stream, Event event) {
  const Mark& mark = marks_.at(event);
  if (mark.stream != 0) return carry_out(event);
  if (stream == 0) return;
  std::int64_t& behind = streams_.at(stream).behind_allocation;
  behind = std::max(behind, mark.position);
}

void FakeStreams::carry_out(Event event) {
  const Mark mark = marks_.at(event);
  if (mark.stream == 0) return;
  Stream& stream = streams_.at(mark.stream);
  for (; stream.over < mark.position; ++stream.over) {
    stream.copies.front()();
    stream.copies.pop_front();
  }
}

bool FakeStreams::over(Event event) const {
  const Mark& mark = marks_.at(event);
  return mark.stream == 0 || streams_.at(mark.stream).over >= mark.position;
}

}  // namespace stagecraft::test
