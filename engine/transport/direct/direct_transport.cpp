#include "engine/transport/direct/direct_transport.h"

#include "engine/transport/wait_error.h"
#include "schedules/base/error.h"

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

struct DirectTransport::Transfer {
  Transfer(std::shared_ptr<DeviceStreams> its_streams, bool is_send, Rank its_peer, const Tag& its_tag,
           at::Tensor its_tensor)
      : streams(std::move(its_streams)),
        computed(streams->take_event()),
        send(is_send),
        peer(its_peer),
        tag(its_tag),
        tensor(std::move(its_tensor)) {
    streams->record(computed, DeviceStreams::Stream::compute);
  }
  ~Transfer() { streams->give_event(computed); }
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  std::shared_ptr<DeviceStreams> streams;
  DeviceStreams::Event computed;  ///< behind what was launched before the transfer
  bool send;
  Rank peer;
  Tag tag;
  at::Tensor tensor;
  RequestPtr request;  ///< of the hosts', from when they have it until it is over
  bool over = false;
  Clock::time_point begun = Clock::now();
};

struct DirectTransport::DirectRequest final : Request {
  explicit DirectRequest(std::shared_ptr<Transfer> its_transfer) : transfer(std::move(its_transfer)) {}
  std::shared_ptr<Transfer> transfer;
};

DirectTransport::DirectTransport(std::unique_ptr<Transport> hosts, std::shared_ptr<DeviceStreams> streams,
                                 const TransportOptions& options)
    : hosts_(std::move(hosts)), streams_(std::move(streams)), options_(options) {
  hosts_->set_background([this] {
    move();
    if (background_) background_();
  });
}

DirectTransport::~DirectTransport() {
  try {
    const std::deque<std::shared_ptr<Transfer>> now = under_way_;  // which move() shortens
    for (const auto& transfer : now) {
      if (std::uncaught_exceptions() > 0) break;  // messages may have lost their reader
      poll(*transfer, [&] { return transfer->over; });
    }
  } catch (const std::exception&) {
    // Another rank has failed, which whoever works next is told.
  }
  hosts_->set_background(nullptr);
}

RequestPtr DirectTransport::begin(bool send, Rank peer, const Tag& tag, const at::Tensor& tensor) {
  STAGECRAFT_CHECK(tensor.is_contiguous(), fmt::format("rank {}: {} needs a contiguous tensor", rank().value,
                                                       name_transfer(send, tag, peer)));
  under_way_.push_back(std::make_shared<Transfer>(streams_, send, peer, tag, tensor));
  return std::make_unique<DirectRequest>(under_way_.back());
}

void DirectTransport::move() {
  bool a_send_stays = false, a_receive_stays = false;  // those of one tag must begin in their order
  for (const auto& transfer : under_way_) {
    if (!transfer->request) {
      bool& one_stays = transfer->send ? a_send_stays : a_receive_stays;
      one_stays = one_stays || !streams_->over(transfer->computed);
      if (one_stays) continue;
      // post_send, as no program's proof knows of a send that begins so late.
      transfer->request = transfer->send
                              ? hosts_->post_send(transfer->peer, transfer->tag, transfer->tensor)
                              : hosts_->post_receive(transfer->peer, transfer->tag, transfer->tensor);
    }
    transfer->over = hosts_->test(*transfer->request);
  }
  std::erase_if(under_way_, [](const std::shared_ptr<Transfer>& transfer) {
    if (!transfer->over) return false;
    transfer->request.reset();
    transfer->tensor.reset();
    return true;
  });
}

void DirectTransport::poll(const Transfer& transfer, const std::function<bool()>& done) {
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

void DirectTransport::hand_over() {
  move();
  const std::deque<std::shared_ptr<Transfer>> now = under_way_;
  for (const auto& transfer : now) poll(*transfer, [&] { return transfer->over || transfer->request; });
}

RequestPtr DirectTransport::post_receive(Rank from, const Tag& tag, const at::Tensor& into) {
  return begin(/*send=*/false, from, tag, into);
}

RequestPtr DirectTransport::start_send(Rank to, const Tag& tag, const at::Tensor& tensor) {
  return begin(/*send=*/true, to, tag, tensor);
}

RequestPtr DirectTransport::post_send(Rank to, const Tag& tag, const at::Tensor& tensor) {
  return begin(/*send=*/true, to, tag, tensor);
}

bool DirectTransport::test(Request& request) {
  move();
  return dynamic_cast<DirectRequest&>(request).transfer->over;
}

void DirectTransport::wait(Request& request) {
  const Transfer& transfer = *dynamic_cast<DirectRequest&>(request).transfer;
  poll(transfer, [&] { return transfer.over; });
}

void DirectTransport::progress() { hosts_->progress(); }

void DirectTransport::barrier() {
  hand_over();
  hosts_->barrier();
}

std::vector<std::vector<double>> DirectTransport::all_gather(const std::vector<double>& mine) {
  hand_over();
  return hosts_->all_gather(mine);
}

std::vector<std::string> DirectTransport::all_gather_text(const std::string& mine) {
  hand_over();
  return hosts_->all_gather_text(mine);
}

std::string DirectTransport::broadcast(const std::string& text) {
  hand_over();
  return hosts_->broadcast(text);
}

}  // namespace stagecraft::transport
