#include "engine/transport/staged/staged_transport.h"

#include <ATen/ops/from_blob.h>
#include <c10/core/ScalarType.h>

#include <exception>
#include <utility>

namespace stagecraft::transport {

/// A send is copied, then travels; a receive travels, then is copied.
/// The event is behind the copy, once that was launched.
struct StagedTransport::Staged : Transfer {
  enum class State : std::uint8_t { copying, travelling, over };

  using Transfer::Transfer;
  at::Tensor host;
  State state = State::copying;

  /// Whether the device is done with it.
  [[nodiscard]] bool device_done() const { return send ? state != State::copying : state == State::over; }
};

struct StagedTransport::StagedRequest final : Request {
  explicit StagedRequest(std::shared_ptr<Staged> its_transfer) : transfer(std::move(its_transfer)) {}
  std::shared_ptr<Staged> transfer;
};

StagedTransport::StagedTransport(std::unique_ptr<Transport> hosts, std::shared_ptr<DeviceStreams> streams)
    : HostBackedTransport(std::move(hosts), std::move(streams)),
      out_(streams_->make_stream()),
      in_(streams_->make_stream()) {}

StagedTransport::~StagedTransport() {
  const int unwinding = std::uncaught_exceptions();
  try {
    // Copies end by themselves; what they work on must stay until then. Messages may have lost their reader.
    const std::deque<std::shared_ptr<Staged>> now = under_way_;  // which move() shortens
    for (const auto& transfer : now) {
      const bool travels = transfer->state == Staged::State::travelling;
      if (travels && unwinding > 0) continue;
      poll(*transfer, [&] { return transfer->state == Staged::State::over; });
    }
  } catch (const std::exception&) {
    // Another rank has failed, which whoever works next is told.
  }
}

at::Tensor StagedTransport::host_memory(std::size_t bytes) {
  std::vector<at::Tensor>& free = free_[bytes];
  if (!free.empty()) {
    at::Tensor memory = std::move(free.back());
    free.pop_back();
    return memory;
  }
  const std::shared_ptr<void> memory = streams_->host_memory(bytes);
  return at::from_blob(
      memory.get(), {static_cast<std::int64_t>(bytes)}, [memory](void*) {}, at::kByte);
}

RequestPtr StagedTransport::begin(bool send, Rank peer, const Tag& tag, const at::Tensor& tensor) {
  const auto transfer = std::make_shared<Staged>(streams_, send, peer, tag, tensor);
  transfer->host = host_memory(tensor.nbytes());
  if (send) {
    copy(*transfer);
  } else {
    // The slot is free when what was computed before is over: marked now, waited for when it has arrived.
    transfer->event.record(DeviceStreams::Stream::compute);
    transfer->request = hosts_->post_receive(peer, tag, transfer->host);
    transfer->state = Staged::State::travelling;
  }
  under_way_.push_back(transfer);
  return std::make_unique<StagedRequest>(transfer);
}

void StagedTransport::copy(Staged& transfer) {
  const DeviceStreams::Stream stream = transfer.send ? out_ : in_;
  if (transfer.send) transfer.event.record(DeviceStreams::Stream::compute);
  transfer.event.before(stream);
  void* const host = transfer.host.mutable_data_ptr();
  if (transfer.send) {
    streams_->copy(stream, host, transfer.tensor.const_data_ptr(), transfer.tensor.nbytes());
  } else {
    streams_->copy(stream, transfer.tensor.mutable_data_ptr(), host, transfer.tensor.nbytes());
  }
  transfer.event.record(stream);
  transfer.state = Staged::State::copying;
}

void StagedTransport::move() {
  using State = Staged::State;
  bool behind_a_copy = false;  // sends of one tag must leave in the order they began
  for (const auto& transfer : under_way_) {
    if (transfer->state == State::copying && transfer->send) {
      if (behind_a_copy || !transfer->event.over()) {
        behind_a_copy = true;
        continue;
      }
      transfer->request = hosts_->post_send(transfer->peer, transfer->tag, transfer->host);
      transfer->state = State::travelling;
    }
    if (transfer->state == State::travelling && hosts_->test(*transfer->request)) {
      if (transfer->send) {
        transfer->state = State::over;
      } else {
        copy(*transfer);
      }
    }
    if (transfer->state == State::copying && !transfer->send && transfer->event.over()) {
      transfer->state = State::over;
    }
  }
  std::erase_if(under_way_, [this](const std::shared_ptr<Staged>& transfer) {
    if (transfer->state != State::over) return false;
    const std::size_t bytes = transfer->host.nbytes();
    free_[bytes].push_back(std::move(transfer->host));
    transfer->tensor.reset();
    return true;
  });
}

void StagedTransport::flush() {
  move();
  const std::deque<std::shared_ptr<Staged>> now = under_way_;
  for (const auto& transfer : now) {
    if (transfer->send) poll(*transfer, [&] { return transfer->device_done(); });
  }
}

bool StagedTransport::test(Request& request) {
  move();
  return dynamic_cast<StagedRequest&>(request).transfer->device_done();
}

void StagedTransport::wait(Request& request) {
  Staged& transfer = *dynamic_cast<StagedRequest&>(request).transfer;
  poll(transfer, [&] { return transfer.send || transfer.state != Staged::State::travelling; });
  transfer.event.before(DeviceStreams::Stream::compute);
  // Its memory may be had again by what is computed from now on, which waits for the copy.
  transfer.tensor.reset();
}

}  // namespace stagecraft::transport
