#include "test/support/fake_device.h"

#include "base/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

namespace stagecraft::test {

constexpr std::chrono::seconds kPatience(60);  // where a GPU would stand still

namespace {

using Collective = FakeFabric::Collective;
using Numbers = NcclBackend::Numbers;

bool same(const Collective& a, const Collective& b) {
  return a.kind == b.kind && a.root == b.root &&
         std::equal(
             a.tensors.begin(), a.tensors.end(), b.tensors.begin(), b.tensors.end(),
             [](const Numbers& x, const Numbers& y) { return x.count == y.count && x.type == y.type; });
}

/// Carries it out on one of the tensors.
template <class Number>
void combine(const std::vector<const Collective*>& calls, std::size_t tensor, std::uint64_t round) {
  const auto members = calls.size();
  const auto root = static_cast<std::size_t>(calls.front()->root);
  std::vector<Number*> of;
  for (const Collective* const call : calls) {
    of.push_back(static_cast<Number*>(call->tensors[tensor].first));
  }
  const std::size_t count = calls.front()->tensors[tensor].count;
  for (std::size_t i = 0; i < count; ++i) {
    Number result = of[root][i];
    if (calls.front()->kind != Collective::Kind::broadcast) {
      // As of a ring, each part of which begins at another member.
      const std::size_t first = members > 2 ? (i * members / count + round) % members : 0;
      result = of[first][i];
      for (std::size_t k = 1; k < members; ++k) result += of[(first + k) % members][i];
    }
    for (std::size_t m = 0; m < members; ++m) {
      if (calls.front()->kind != Collective::Kind::reduce || m == root) of[m][i] = result;
    }
  }
}

}  // namespace

void FakeFabric::open(int channel, const std::string& id, Seconds timeout, const Aborted& aborted) {
  std::unique_lock lock(mutex_);
  P2pChannel& line = lines_[channel];
  if (line.ends++ == 0) line.id = id;
  STAGECRAFT_CHECK(line.id == id && line.ends <= 2,
                   fmt::format("the ends of channel {} do not fit", channel));
  changed_.notify_all();
  const bool both = changed_.wait_for(lock, std::chrono::duration<double>(timeout.value),
                                      [&] { return line.ends == 2 || aborted; });
  if (!both || aborted) throw PeerError(fmt::format("nobody opens the other end of channel {}", channel));
}

bool FakeFabric::transfer(int channel, bool send, void* memory, std::size_t bytes, const Aborted& aborted) {
  std::unique_lock lock(mutex_);
  P2pChannel& line = lines_.at(channel);
  changed_.wait(lock, [&] { return !line.met || aborted; });  // the pair before has not parted yet
  if (aborted) return false;
  if (line.waiting == nullptr) {
    line.waiting = memory;
    line.bytes = bytes;
    changed_.notify_all();
    changed_.wait(lock, [&] { return line.met || aborted; });
    line.waiting = nullptr;
    if (!std::exchange(line.met, false)) return false;
    changed_.notify_all();
    return true;
  }
  if (line.bytes != bytes) {
    failure_ = fmt::format("channel {}: {} bytes meet {}", channel, bytes, line.bytes);
  } else {
    std::memcpy(send ? line.waiting : memory, send ? memory : line.waiting, bytes);
  }
  ++transfers_;
  line.met = true;
  changed_.notify_all();
  return true;
}

void FakeFabric::join(const NcclBackend::Membership& mine, Seconds timeout, const Aborted& aborted) {
  std::unique_lock lock(mutex_);
  Circle& circle = circles_[mine.group];
  if (circle.joined++ == 0) {
    circle.id = mine.id;
    circle.calls.resize(static_cast<std::size_t>(mine.members));
  }
  const auto members = static_cast<int>(circle.calls.size());
  STAGECRAFT_CHECK(
      circle.id == mine.id && mine.members == members && mine.number < members && circle.joined <= members,
      fmt::format("the members of group {} do not fit", mine.group));
  changed_.notify_all();
  const bool all = changed_.wait_for(lock, std::chrono::duration<double>(timeout.value),
                                     [&] { return circle.joined == members || aborted; });
  if (!all || aborted) throw PeerError(fmt::format("not all members open group {}", mine.group));
}

bool FakeFabric::collect(int group, int number, const Collective& call, const Aborted& aborted) {
  std::unique_lock lock(mutex_);
  if (aborted) return false;
  Circle& circle = circles_.at(group);
  const std::uint64_t round = circle.rounds;
  const Collective*& mine = circle.calls.at(static_cast<std::size_t>(number));
  mine = &call;
  if (std::count(circle.calls.begin(), circle.calls.end(), nullptr) > 0) {
    changed_.wait(lock, [&] { return circle.rounds > round || aborted; });
    if (circle.rounds == round) mine = nullptr;
    return circle.rounds > round;
  }
  carry_out(circle);
  std::fill(circle.calls.begin(), circle.calls.end(), nullptr);
  ++circle.rounds;
  ++collectives_;
  changed_.notify_all();
  return true;
}

void FakeFabric::carry_out(const Circle& circle) {
  const Collective& first = *circle.calls.front();
  for (const Collective* const call : circle.calls) {
    if (same(first, *call)) continue;
    failure_ = "the members of a group launch different things";
    return;
  }
  for (std::size_t i = 0; i < first.tensors.size(); ++i) {
    switch (first.tensors[i].type) {
      case NcclBackend::NumberType::float32:
        combine<float>(circle.calls, i, circle.rounds);
        break;
      case NcclBackend::NumberType::float64:
        combine<double>(circle.calls, i, circle.rounds);
        break;
      case NcclBackend::NumberType::uint8:
        combine<std::uint8_t>(circle.calls, i, circle.rounds);
        break;
    }
  }
}

void FakeFabric::wake() {
  const std::lock_guard lock(mutex_);
  changed_.notify_all();
}

std::string FakeFabric::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void FakeFabric::fail(const std::string& failure) {
  const std::lock_guard lock(mutex_);
  failure_ = failure;
}

FakeDevice::FakeDevice(std::shared_ptr<FakeFabric> fabric, std::uint64_t seed, int most_streams)
    : fabric_(std::move(fabric)), seed_(seed), most_streams_(most_streams) {}

FakeDevice::~FakeDevice() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    aborted_ = true;
  }
  changed_.notify_all();
  fabric_->wake();
  for (const auto& queue : queues_) queue->thread.join();
}

FakeDevice::Stream FakeDevice::make_stream() {
  queues_.push_back(std::make_unique<Queue>());
  Queue& queue = *queues_.back();
  queue.thread = std::thread([this, &queue, seed = seed_ * 100 + queues_.size()] { serve(queue, seed); });
  return static_cast<Stream>(queues_.size());
}

void FakeDevice::let_compute_lag() {
  lagging_ = queues_.at(static_cast<std::size_t>(make_stream()) - 1).get();
}

void FakeDevice::compute(std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  push(*lagging_, std::move(work));
}

void FakeDevice::serve(Queue& queue, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return ending_ || !queue.work.empty(); });
    if (queue.work.empty()) return;
    const std::function<void()> work = std::move(queue.work.front());
    queue.work.pop_front();
    queue.busy = true;
    lock.unlock();
    if (random() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
    work();
    lock.lock();
    queue.busy = false;
    changed_.notify_all();
  }
}

void FakeDevice::synchronize(Seconds patience) {
  std::unique_lock lock(mutex_);
  const bool rests = changed_.wait_for(lock, std::chrono::duration<double>(patience.value), [&] {
    return std::all_of(queues_.begin(), queues_.end(), [](const std::unique_ptr<Queue>& queue) {
      return queue->work.empty() && !queue->busy;
    });
  });
  STAGECRAFT_CHECK(rests, "a wait for the device never ends");
}

void FakeDevice::push(Queue& queue, std::function<void()> work) {
  queue.work.push_back(std::move(work));
  changed_.notify_all();
}

FakeDevice::Event FakeDevice::take(std::vector<Event>& pool) {
  const std::lock_guard lock(mutex_);
  if (pool.empty()) {
    events_.emplace_back().pool = &pool;
    return static_cast<Event>(events_.size() - 1);
  }
  const Event event = pool.back();
  pool.pop_back();
  return event;
}

void FakeDevice::give_event(Event event) {
  const std::lock_guard lock(mutex_);
  events_.at(static_cast<std::size_t>(event)).pool->push_back(event);
}

void FakeDevice::Marks::end(std::uint64_t mark) {
  over = std::max(over, mark);
  when = std::chrono::steady_clock::now();
}

void FakeDevice::record(Event event, Stream stream) {
  const std::lock_guard lock(mutex_);
  Marks& marks = events_.at(static_cast<std::size_t>(event));
  const std::uint64_t mark = ++marks.recorded;
  const bool computes = stream == Stream::compute;
  if (computes && lagging_ == nullptr) {
    marks.covers = true;
    marks.end(mark);  // the thread that records has computed it
    marks.collective = 0;
    changed_.notify_all();
    return;
  }
  Queue& queue = computes ? *lagging_ : queue_of(stream);
  marks.covers = computes || std::exchange(queue.launched, false);
  marks.collective = queue.collective;
  push(queue, [this, event, mark] {
    const std::lock_guard here(mutex_);
    events_.at(static_cast<std::size_t>(event)).end(mark);
    changed_.notify_all();
  });
}

bool FakeDevice::await(Event event, std::uint64_t mark) {
  std::unique_lock lock(mutex_);
  const Marks& marks = events_.at(static_cast<std::size_t>(event));
  (void)changed_.wait_for(lock, kPatience, [&] { return marks.over >= mark || aborted_; });
  return marks.over >= mark;
}

bool FakeDevice::await_as_compute(Event event, std::uint64_t mark) {
  if (!meanwhile_) return await(event, mark);
  const auto until = std::chrono::steady_clock::now() + kPatience;
  while (true) {
    {
      std::unique_lock lock(mutex_);
      const Marks& marks = events_.at(static_cast<std::size_t>(event));
      const bool rung = changed_.wait_for(lock, std::chrono::microseconds(200),
                                          [&] { return marks.over >= mark || aborted_; });
      if (rung || std::chrono::steady_clock::now() > until) return marks.over >= mark;
    }
    meanwhile_();
  }
}

void FakeDevice::wait(Stream stream, Event event) {
  std::unique_lock lock(mutex_);
  Marks& marks = events_.at(static_cast<std::size_t>(event));
  const std::uint64_t mark = marks.recorded;
  if (stream == Stream::compute) {
    demanded_ = std::max(demanded_, marks.collective);
    changed_.notify_all();
    if (lagging_ != nullptr) return push(*lagging_, [this, event, mark] { (void)await(event, mark); });
    lock.unlock();
    if (!await_as_compute(event, mark) || aborted_)
      throw PeerError("the channels were aborted, or nobody came");
    return;
  }
  Queue& queue = queue_of(stream);
  if (marks.covers) queue.ordered_after = &marks;
  push(queue, [this, event, mark] { (void)await(event, mark); });
}

bool FakeDevice::over(Event event) {
  const std::lock_guard lock(mutex_);
  const Marks& marks = events_.at(static_cast<std::size_t>(event));
  return marks.over >= marks.recorded;
}

Seconds FakeDevice::between(Event begin, Event end) {
  const std::lock_guard lock(mutex_);
  const auto when = [&](Event event) {
    const Marks& marks = events_.at(static_cast<std::size_t>(event));
    STAGECRAFT_CHECK(marks.pool == &timed_ && marks.recorded > 0 && marks.over == marks.recorded,
                     "an event that is not timed, or not over, has no time");
    return marks.when;
  };
  return Seconds{std::chrono::duration<double>(when(end) - when(begin)).count()};
}

std::string FakeDevice::make_id() {
  static std::atomic<int> next = 0;
  return fmt::format("channel id {:08}", ++next);
}

void FakeDevice::open(const std::vector<Endpoint>& ends, const std::vector<Membership>& groups,
                      Seconds timeout) {
  for (const Endpoint& end : ends) fabric_->open(end.channel, end.id, timeout, aborted_);
  for (const Membership& mine : groups) {
    fabric_->join(mine, timeout, aborted_);
    groups_[mine.group].number = mine.number;
  }
}

void FakeDevice::check_order(Queue& queue, const std::string& what) {
  Marks* const before = std::exchange(queue.ordered_after, nullptr);
  STAGECRAFT_CHECK(before != nullptr && before->covers,
                   what + " is launched without an event of what was computed before");
  before->covers = false;
  queue.launched = true;
}

void FakeDevice::copy(Stream stream, void* to, const void* from, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  Queue& queue = queue_of(stream);
  check_order(queue, "a copy");
  push(queue, [to, from, bytes] { std::memcpy(to, from, bytes); });
}

std::shared_ptr<void> FakeDevice::host_memory(std::size_t bytes) {
  return {::operator new(bytes), [](void* memory) { ::operator delete(memory); }};
}

void FakeDevice::launch(bool send, int channel, Stream stream, void* memory, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  Queue& queue = queue_of(stream);
  check_order(queue, fmt::format("a {} on channel {}", send ? "send" : "receive", channel));
  const auto& [direction, usual] = used_.try_emplace(channel, send, stream).first->second;
  STAGECRAFT_CHECK(direction == send && usual == stream,
                   fmt::format("channel {} is used in both directions, or from two streams", channel));
  push(queue, [this, send, channel, memory, bytes] {
    (void)fabric_->transfer(channel, send, memory, bytes, aborted_);
  });
}

void FakeDevice::send(int channel, Stream stream, const void* from, std::size_t bytes) {
  launch(/*send=*/true, channel, stream, const_cast<void*>(from), bytes);
}

void FakeDevice::receive(int channel, Stream stream, void* into, std::size_t bytes) {
  launch(/*send=*/false, channel, stream, into, bytes);
}

bool FakeDevice::await_demand(std::uint64_t collective) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return demanded_ >= collective || ending_ || aborted_; });
  return demanded_ >= collective;
}

void FakeDevice::launch(int group, Stream stream, FakeFabric::Collective call) {
  const std::lock_guard lock(mutex_);
  Queue& queue = queue_of(stream);
  check_order(queue, fmt::format("a collective of group {}", group));
  Place& place = groups_.at(group);
  if (!place.stream) place.stream = stream;
  STAGECRAFT_CHECK(place.stream == stream, fmt::format("group {} is used from two streams", group));
  queue.collective = ++launched_;
  push(queue, [this, group, number = place.number, which = launched_, call = std::move(call)] {
    if (await_demand(which)) (void)fabric_->collect(group, number, call, aborted_);
  });
}

void FakeDevice::all_reduce(int group, Stream stream, const std::vector<Numbers>& tensors) {
  launch(group, stream, {Collective::Kind::all_reduce, 0, tensors});
}

void FakeDevice::reduce(int group, Stream stream, int root, const std::vector<Numbers>& tensors) {
  launch(group, stream, {Collective::Kind::reduce, root, tensors});
}

void FakeDevice::broadcast(int group, Stream stream, int root, const std::vector<Numbers>& tensors) {
  launch(group, stream, {Collective::Kind::broadcast, root, tensors});
}

std::optional<std::string> FakeDevice::failure() {
  const std::string failure = fabric_->failure();
  return failure.empty() ? std::nullopt : std::optional(failure);
}

void FakeDevice::abort() noexcept {
  while (abort_hangs_) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
  }
  changed_.notify_all();
  fabric_->wake();
  synchronize(Seconds{std::chrono::duration<double>(kPatience).count()});
}

}  // namespace stagecraft::test
