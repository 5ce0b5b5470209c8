#include "engine/transport/direct/direct_transport.h"

#include <exception>

namespace stagecraft::transport {

/// The event is behind what was launched before the transfer; the hosts have their request until it is over.
struct DirectTransport::Direct : Transfer {
  using Transfer::Transfer;
  bool over = false;
};

struct DirectTransport::DirectRequest final : Request {
  explicit DirectRequest(std::shared_ptr<Direct> its_transfer) : transfer(std::move(its_transfer)) {}
  std::shared_ptr<Direct> transfer;
};

DirectTransport::~DirectTransport() {
  try {
    const std::deque<std::shared_ptr<Direct>> now = under_way_;  // which move() shortens
    for (const auto& transfer : now) {
      if (std::uncaught_exceptions() > 0) break;  // messages may have lost their reader
      poll(*transfer, [&] { return transfer->over; });
    }
  } catch (const std::exception&) {
    // Another rank has failed, which whoever works next is told.
  }
}

RequestPtr DirectTransport::begin(bool send, Rank peer, const Tag& tag, const at::Tensor& tensor) {
  const auto transfer = std::make_shared<Direct>(streams_, send, peer, tag, tensor);
  transfer->event.record(DeviceStreams::Stream::compute);
  under_way_.push_back(transfer);
  return std::make_unique<DirectRequest>(transfer);
}

void DirectTransport::move() {
  bool a_send_stays = false, a_receive_stays = false;  // those of one tag must begin in their order
  for (const auto& transfer : under_way_) {
    if (!transfer->request) {
      bool& one_stays = transfer->send ? a_send_stays : a_receive_stays;
      one_stays = one_stays || !transfer->event.over();
      if (one_stays) continue;
      // post_send, as no program's proof knows of a send that begins so late.
      transfer->request = transfer->send
                              ? hosts_->post_send(transfer->peer, transfer->tag, transfer->tensor)
                              : hosts_->post_receive(transfer->peer, transfer->tag, transfer->tensor);
    }
    transfer->over = hosts_->test(*transfer->request);
  }
  std::erase_if(under_way_, [](const std::shared_ptr<Direct>& transfer) {
    if (!transfer->over) return false;
    transfer->request.reset();
    transfer->tensor.reset();
    return true;
  });
}

void DirectTransport::flush() {
  move();
  const std::deque<std::shared_ptr<Direct>> now = under_way_;
  for (const auto& transfer : now) poll(*transfer, [&] { return transfer->over || transfer->request; });
}

bool DirectTransport::test(Request& request) {
  move();
  return dynamic_cast<DirectRequest&>(request).transfer->over;
}

void DirectTransport::wait(Request& request) {
  const Direct& transfer = *dynamic_cast<DirectRequest&>(request).transfer;
  poll(transfer, [&] { return transfer.over; });
}

}  // namespace stagecraft::transport
