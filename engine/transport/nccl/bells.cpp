#include "engine/transport/nccl/bells.h"

#include "engine/transport/waits.h"

#include <ATen/ops/zeros.h>

#include <exception>
#include <optional>
#include <thread>

namespace stagecraft::transport {

at::Tensor Bells::one_byte() { return at::zeros({1}, at::kByte); }

Bells::~Bells() {
  if (std::uncaught_exceptions() > 0) return;
  try {
    await(
        [this] {
          tidy();
          return rung_.empty();
        },
        [] { return std::string("what the hosts tell each other"); });
  } catch (const std::exception&) {
    // Another rank has failed, which whoever works next is told.
  }
}

void Bells::ring(Rank peer, const Tag& tag) {
  tidy();
  rung_.push_back(hosts_.post_send(peer, tag, sent_));
}

Bell Bells::expect(Rank peer, const Tag& tag) {
  at::Tensor byte;
  if (free_.empty()) {
    byte = one_byte();
  } else {
    byte = std::move(free_.back());
    free_.pop_back();
  }
  RequestPtr request = hosts_.post_receive(peer, tag, byte);
  return {std::move(request), std::move(byte)};
}

bool Bells::heard(Bell& expected) {
  if (!hosts_.test(*expected.request)) return false;
  if (expected.byte.defined()) free_.push_back(std::exchange(expected.byte, {}));
  return true;
}

void Bells::tidy() {
  while (!rung_.empty() && hosts_.test(*rung_.front())) rung_.pop_front();
}

void Bells::await(const std::function<bool()>& done, const std::function<std::string()>& what,
                  Stopwatch::Clock::time_point begun) {
  constexpr int kEager = 100;
  if (done()) return;
  const HeldEvent computed(streams_);
  computed.record(DeviceStreams::Stream::compute);
  std::optional<Wait> wait;
  for (int turn = 0; !done(); ++turn) {
    hosts_.progress();
    if (turn < kEager) continue;
    std::this_thread::yield();
    if (!wait && computed.over()) wait.emplace(hosts_.waits(), begun);
    if (wait) wait->check(what);
  }
}

}  // namespace stagecraft::transport
