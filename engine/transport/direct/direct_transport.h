#pragma once

// Ranks with a device each, over a transport of the hosts that reads and writes the device's memory itself:
// an MPI built for it ("CUDA-aware"). Nothing is copied here. Collectives are the hosts' alone.
//
// Such a transport knows nothing of streams. So a transfer is handed to it when the device is done with what
// was launched before: then a send's tensor is computed, and a receive's memory is used by nobody. Until then
// somebody must look: every call here does, and so does the hosts' transport while it waits. wait() lets the
// host wait for the end of the transfer, behind which the device may use the memory at once.

#include "engine/device/streams.h"
#include "engine/transport/transport.h"

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace stagecraft::transport {

class DirectTransport final : public Transport {
 public:
  /// Of `streams`, only the end of what computes is asked for.
  DirectTransport(std::unique_ptr<Transport> hosts, std::shared_ptr<DeviceStreams> streams,
                  const TransportOptions& options);
  ~DirectTransport() override;
  DirectTransport(const DirectTransport&) = delete;
  DirectTransport& operator=(const DirectTransport&) = delete;

  [[nodiscard]] Rank rank() const override { return hosts_->rank(); }
  [[nodiscard]] int world() const override { return hosts_->world(); }
  [[nodiscard]] std::string name() const override { return hosts_->name() + ", CUDA-aware"; }

  [[nodiscard]] RequestPtr post_receive(Rank from, const Tag& tag, const at::Tensor& into) override;
  [[nodiscard]] RequestPtr start_send(Rank to, const Tag& tag, const at::Tensor& tensor) override;
  [[nodiscard]] RequestPtr post_send(Rank to, const Tag& tag, const at::Tensor& tensor) override;
  [[nodiscard]] bool test(Request& request) override;
  void wait(Request& request) override;
  void progress() override;
  void set_background(std::function<void()> work) override { background_ = std::move(work); }

  // Collectives hand over what is still here first: afterwards nobody may look for a while.
  void barrier() override;
  [[nodiscard]] std::vector<std::vector<double>> all_gather(const std::vector<double>& mine) override;
  [[nodiscard]] std::vector<std::string> all_gather_text(const std::string& mine) override;
  [[nodiscard]] std::string broadcast(const std::string& text) override;

  void fail(const std::string& reason) noexcept override { hosts_->fail(reason); }

 private:
  struct Transfer;
  struct DirectRequest;
  [[nodiscard]] RequestPtr begin(bool send, Rank peer, const Tag& tag, const at::Tensor& tensor);
  /// Takes every transfer its next step.
  void move();
  /// Looks until `done`. `transfer` is what a timeout names.
  void poll(const Transfer& transfer, const std::function<bool()>& done);
  /// Until the hosts' transport has all transfers.
  void hand_over();

  std::unique_ptr<Transport> hosts_;
  std::shared_ptr<DeviceStreams> streams_;
  TransportOptions options_;
  std::deque<std::shared_ptr<Transfer>> under_way_;  ///< in the order they began
  std::function<void()> background_;
};

}  // namespace stagecraft::transport
