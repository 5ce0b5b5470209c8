#include "engine/transport/staged/staged_transport.h"

#include "engine/transport/wait_error.h"
#include "schedules/base/error.h"

#include <ATen/ops/from_blob.h>
#include <c10/core/ScalarType.h>
#include <fmt/format.h>

#include <chrono>
#include <exception>
#include <thread>
#include <utility>

namespace stagecraft::transport {
namespace {

using Clock = std::chrono::steady_clock;

Seconds since(Clock::time_point begun) {
  return Seconds{std::chrono::duration<double>(Clock::now() - begun).count()};
}

}  // namespace

/// A send is copied, then travels; a receive travels, then is copied.
struct StagedTransport::Staged {
  enum class State : std::uint8_t { copying, travelling, over };

  Staged(std::shared_ptr<DeviceStreams> its_streams, bool is_send, Rank its_peer, const Tag& its_tag,
         at::Tensor its_tensor)
      : streams(std::move(its_streams)),
        copied(streams->take_event()),
        send(is_send),
        peer(its_peer),
        tag(its_tag),
        device(std::move(its_tensor)) {}
  ~Staged() { streams->give_event(copied); }
  Staged(const Staged&) = delete;
  Staged& operator=(const Staged&) = delete;

  std::shared_ptr<DeviceStreams> streams;
  DeviceStreams::Event copied;  ///< behind the copy, once that was launched
  bool send;
  Rank peer;
  Tag tag;
  at::Tensor device, host;
  RequestPtr request;  ///< of the hosts'
  State state = State::copying;
  Clock::time_point begun = Clock::now();

  /// Whether the device is done with it.
  [[nodiscard]] bool device_done() const { return send ? state != State::copying : state == State::over; }
};

struct StagedTransport::StagedRequest final : Request {
  explicit StagedRequest(std::shared_ptr<Staged> its_transfer) : transfer(std::move(its_transfer)) {}
  std::shared_ptr<Staged> transfer;
};

StagedTransport::StagedTransport(std::unique_ptr<Transport> hosts, std::shared_ptr<DeviceStreams> streams,
                                 const TransportOptions& options)
    : hosts_(std::move(hosts)),
      streams_(std::move(streams)),
      options_(options),
      out_(streams_->make_stream()),
      in_(streams_->make_stream()) {
  hosts_->set_background([this] {
    move();
    if (background_) background_();
  });
}

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
  hosts_->set_background(nullptr);
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
  STAGECRAFT_CHECK(tensor.is_contiguous(), fmt::format("rank {}: {} needs a contiguous tensor", rank().value,
                                                       name_transfer(send, tag, peer)));
  const auto transfer = std::make_shared<Staged>(streams_, send, peer, tag, tensor);
  transfer->host = host_memory(tensor.nbytes());
  if (send) {
    copy(*transfer);
  } else {
    // The slot is free when what was computed before is over: marked now, waited for when it has arrived.
    streams_->record(transfer->copied, DeviceStreams::Stream::compute);
    transfer->request = hosts_->post_receive(peer, tag, transfer->host);
    transfer->state = Staged::State::travelling;
  }
  under_way_.push_back(transfer);
  return std::make_unique<StagedRequest>(transfer);
}

void StagedTransport::copy(Staged& transfer) {
  const DeviceStreams::Stream stream = transfer.send ? out_ : in_;
  if (transfer.send) streams_->record(transfer.copied, DeviceStreams::Stream::compute);
  streams_->wait(stream, transfer.copied);
  void* const host = transfer.host.mutable_data_ptr();
  if (transfer.send) {
    streams_->copy(stream, host, transfer.device.const_data_ptr(), transfer.device.nbytes());
  } else {
    streams_->copy(stream, transfer.device.mutable_data_ptr(), host, transfer.device.nbytes());
  }
  streams_->record(transfer.copied, stream);
  transfer.state = Staged::State::copying;
}

void StagedTransport::move() {
  using State = Staged::State;
  bool behind_a_copy = false;  // sends of one tag must leave in the order they began
  for (const auto& transfer : under_way_) {
    if (transfer->state == State::copying && transfer->send) {
      if (behind_a_copy || !streams_->over(transfer->copied)) {
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
    if (transfer->state == State::copying && !transfer->send && streams_->over(transfer->copied)) {
      transfer->state = State::over;
    }
  }
  std::erase_if(under_way_, [this](const std::shared_ptr<Staged>& transfer) {
    if (transfer->state != State::over) return false;
    const std::size_t bytes = transfer->host.nbytes();
    free_[bytes].push_back(std::move(transfer->host));
    transfer->device.reset();
    return true;
  });
}

void StagedTransport::poll(const Staged& transfer, const std::function<bool()>& done) {
  constexpr int kEager = 100;
  const Clock::time_point waiting_since = Clock::now();
  for (int turn = 0; !done(); ++turn) {
    hosts_->progress();  // moves ours as well
    if (turn < kEager) continue;
    std::this_thread::yield();
    if (since(waiting_since) <= options_.timeout) continue;
    throw PeerError(timed_out(rank(), name_transfer(transfer.send, transfer.tag, transfer.peer),
                              since(transfer.begun), options_.timeout));
  }
}

void StagedTransport::flush() {
  move();
  const std::deque<std::shared_ptr<Staged>> now = under_way_;
  for (const auto& transfer : now) {
    if (transfer->send) poll(*transfer, [&] { return transfer->device_done(); });
  }
}

RequestPtr StagedTransport::post_receive(Rank from, const Tag& tag, const at::Tensor& into) {
  return begin(/*send=*/false, from, tag, into);
}

RequestPtr StagedTransport::start_send(Rank to, const Tag& tag, const at::Tensor& tensor) {
  return begin(/*send=*/true, to, tag, tensor);
}

RequestPtr StagedTransport::post_send(Rank to, const Tag& tag, const at::Tensor& tensor) {
  return begin(/*send=*/true, to, tag, tensor);
}

bool StagedTransport::test(Request& request) {
  move();
  return dynamic_cast<StagedRequest&>(request).transfer->device_done();
}

void StagedTransport::wait(Request& request) {
  Staged& transfer = *dynamic_cast<StagedRequest&>(request).transfer;
  poll(transfer, [&] { return transfer.send || transfer.state != Staged::State::travelling; });
  streams_->wait(DeviceStreams::Stream::compute, transfer.copied);
  // Its memory may be had again by what is computed from now on, which waits for the copy.
  transfer.device.reset();
}

void StagedTransport::progress() { hosts_->progress(); }

void StagedTransport::barrier() {
  flush();
  hosts_->barrier();
}

std::vector<std::vector<double>> StagedTransport::all_gather(const std::vector<double>& mine) {
  flush();
  return hosts_->all_gather(mine);
}

std::vector<std::string> StagedTransport::all_gather_text(const std::string& mine) {
  flush();
  return hosts_->all_gather_text(mine);
}

std::string StagedTransport::broadcast(const std::string& text) {
  flush();
  return hosts_->broadcast(text);
}

}  // namespace stagecraft::transport
