#pragma once

// Ranks with a device each, over a transport of the hosts that reads and writes the device's memory itself:
// an MPI built for it ("CUDA-aware"). Nothing is copied here.
//
// Such a transport knows nothing of streams. So a transfer is handed to it when the device is done with what
// was launched before: then a send's tensor is computed, and a receive's memory is used by nobody. wait()
// lets the host wait for the end of the transfer, behind which the device may use the memory at once.

#include "engine/transport/host_backed_transport.h"

#include <deque>
#include <memory>
#include <string>
#include <utility>

namespace stagecraft::transport {

class DirectTransport final : public HostBackedTransport {
 public:
  /// Of `streams`, only the end of what computes is asked for.
  DirectTransport(std::unique_ptr<Transport> hosts, std::shared_ptr<DeviceStreams> streams)
      : HostBackedTransport(std::move(hosts), std::move(streams)) {}
  ~DirectTransport() override;
  DirectTransport(const DirectTransport&) = delete;
  DirectTransport& operator=(const DirectTransport&) = delete;

  [[nodiscard]] std::string name() const override { return hosts_->name() + ", CUDA-aware"; }
  [[nodiscard]] bool test(Request& request) override;
  void wait(Request& request) override;

 private:
  struct Direct;
  struct DirectRequest;
  [[nodiscard]] RequestPtr begin(bool send, Rank peer, const Tag& tag, const at::Tensor& tensor) override;
  void move() override;
  void flush() override;

  std::deque<std::shared_ptr<Direct>> under_way_;  ///< in the order they began
};

}  // namespace stagecraft::transport
