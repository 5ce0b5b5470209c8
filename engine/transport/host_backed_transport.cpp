#include "engine/transport/host_backed_transport.h"

#include "base/error.h"
#include "engine/transport/wait_error.h"

#include <fmt/format.h>

#include <thread>
#include <utility>

namespace stagecraft::transport {

HostBackedTransport::Transfer::Transfer(std::shared_ptr<DeviceStreams> its_streams, bool is_send,
                                        Rank its_peer, const Tag& its_tag, at::Tensor its_tensor)
    : event(std::move(its_streams)),
      send(is_send),
      peer(its_peer),
      tag(its_tag),
      tensor(std::move(its_tensor)) {}

HostBackedTransport::HostBackedTransport(std::unique_ptr<Transport> hosts,
                                         std::shared_ptr<DeviceStreams> streams)
    : hosts_(std::move(hosts)), streams_(std::move(streams)) {
  hosts_->set_background([this] {
    move();
    if (background_) background_();
  });
}

HostBackedTransport::~HostBackedTransport() { hosts_->set_background(nullptr); }

RequestPtr HostBackedTransport::begin_checked(bool send, Rank peer, const Tag& tag,
                                              const at::Tensor& tensor) {
  STAGECRAFT_CHECK(tensor.is_contiguous(), fmt::format("rank {}: {} needs a contiguous tensor", rank().value,
                                                       name_transfer(send, tag, peer)));
  return begin(send, peer, tag, tensor);
}

void HostBackedTransport::poll(const Transfer& transfer, const std::function<bool()>& done) {
  constexpr int kEager = 100;
  Wait wait(waits(), transfer.begun);
  const auto what = [&] { return name_transfer(transfer.send, transfer.tag, transfer.peer); };
  for (int turn = 0; !done(); ++turn) {
    progress();
    if (turn < kEager) continue;
    std::this_thread::yield();
    wait.check(what);
  }
}

RequestPtr HostBackedTransport::post_receive(Rank from, const Tag& tag, const at::Tensor& into) {
  return begin_checked(/*send=*/false, from, tag, into);
}

RequestPtr HostBackedTransport::start_send(Rank to, const Tag& tag, const at::Tensor& tensor) {
  return begin_checked(/*send=*/true, to, tag, tensor);
}

RequestPtr HostBackedTransport::post_send(Rank to, const Tag& tag, const at::Tensor& tensor) {
  return begin_checked(/*send=*/true, to, tag, tensor);
}

void HostBackedTransport::barrier() {
  flush();
  hosts_->barrier();
}

std::vector<std::vector<double>> HostBackedTransport::all_gather(const std::vector<double>& mine) {
  flush();
  return hosts_->all_gather(mine);
}

std::vector<std::string> HostBackedTransport::all_gather_text(const std::string& mine) {
  flush();
  return hosts_->all_gather_text(mine);
}

void HostBackedTransport::gather_text(Rank to, const std::string& mine,
                                      const std::function<void(Rank from, const std::string& text)>& take) {
  flush();
  hosts_->gather_text(to, mine, take);
}

std::string HostBackedTransport::broadcast(const std::string& text) {
  flush();
  return hosts_->broadcast(text);
}

}  // namespace stagecraft::transport
