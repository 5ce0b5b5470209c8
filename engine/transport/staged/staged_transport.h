#pragma once

// Ranks with a device each, where NCCL cannot go: tensors are copied to page-locked host memory, travel over
// the transport of the hosts, and are copied to the receiving device.
//
// A send is a copy on a stream beside what computes, and as soon as that is over a send of the hosts'. A
// receive is one of the hosts', and as soon as that has arrived a copy. wait() for a send lets the device use
// the tensor again, though the message may still be in the host's memory; so a send never blocks.

#include "engine/transport/host_backed_transport.h"

#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace stagecraft::transport {

class StagedTransport final : public HostBackedTransport {
 public:
  StagedTransport(std::unique_ptr<Transport> hosts, std::shared_ptr<DeviceStreams> streams);
  ~StagedTransport() override;
  StagedTransport(const StagedTransport&) = delete;
  StagedTransport& operator=(const StagedTransport&) = delete;

  [[nodiscard]] std::string name() const override { return hosts_->name() + ", staged"; }
  [[nodiscard]] bool test(Request& request) override;
  void wait(Request& request) override;

 private:
  struct Staged;
  struct StagedRequest;
  [[nodiscard]] RequestPtr begin(bool send, Rank peer, const Tag& tag, const at::Tensor& tensor) override;
  void move() override;
  /// Until all copies of sends are over and the hosts' transport has them.
  void flush() override;
  /// Puts the transfer's copy behind what was computed before.
  void copy(Staged& transfer);
  [[nodiscard]] at::Tensor host_memory(std::size_t bytes);

  DeviceStreams::Stream out_, in_;
  std::deque<std::shared_ptr<Staged>> under_way_;        ///< in the order they began
  std::map<std::size_t, std::vector<at::Tensor>> free_;  ///< host memory, by bytes
};

}  // namespace stagecraft::transport
