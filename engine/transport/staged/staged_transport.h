#pragma once

// Ranks with a device each, where NCCL cannot go: tensors are copied to page-locked host memory, travel over
// the transport of the hosts, and are copied to the receiving device. Collectives are the hosts' alone.
//
// A send is a copy on a stream beside what computes, and as soon as that is over a send of the hosts'. A
// receive is one of the hosts', and as soon as that has arrived a copy. In between somebody must look: every
// call here does, and so does the hosts' transport while it waits. wait() for a send lets the device use the
// tensor again, though the message may still be in the host's memory; so a send never blocks.

#include "engine/device/streams.h"
#include "engine/transport/transport.h"

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace stagecraft::transport {

class StagedTransport final : public Transport {
 public:
  StagedTransport(std::unique_ptr<Transport> hosts, std::shared_ptr<DeviceStreams> streams,
                  const TransportOptions& options);
  ~StagedTransport() override;
  StagedTransport(const StagedTransport&) = delete;
  StagedTransport& operator=(const StagedTransport&) = delete;

  [[nodiscard]] Rank rank() const override { return hosts_->rank(); }
  [[nodiscard]] int world() const override { return hosts_->world(); }
  [[nodiscard]] std::string name() const override { return hosts_->name() + ", staged"; }

  [[nodiscard]] RequestPtr post_receive(Rank from, const Tag& tag, const at::Tensor& into) override;
  [[nodiscard]] RequestPtr start_send(Rank to, const Tag& tag, const at::Tensor& tensor) override;
  [[nodiscard]] RequestPtr post_send(Rank to, const Tag& tag, const at::Tensor& tensor) override;
  [[nodiscard]] bool test(Request& request) override;
  void wait(Request& request) override;
  void progress() override;
  void set_background(std::function<void()> work) override { background_ = std::move(work); }

  // Collectives send what is still here first: afterwards nobody may look for a while.
  void barrier() override;
  [[nodiscard]] std::vector<std::vector<double>> all_gather(const std::vector<double>& mine) override;
  [[nodiscard]] std::vector<std::string> all_gather_text(const std::string& mine) override;
  [[nodiscard]] std::string broadcast(const std::string& text) override;

  void fail(const std::string& reason) noexcept override { hosts_->fail(reason); }

 private:
  struct Staged;
  struct StagedRequest;
  [[nodiscard]] RequestPtr begin(bool send, Rank peer, const Tag& tag, const at::Tensor& tensor);
  /// Puts the transfer's copy behind what was computed before.
  void copy(Staged& transfer);
  /// Takes every transfer its next step.
  void move();
  /// Looks until `done`. `transfer` is what a timeout names.
  void poll(const Staged& transfer, const std::function<bool()>& done);
  /// Until all copies of sends are over and the hosts' transport has them.
  void flush();
  [[nodiscard]] at::Tensor host_memory(std::size_t bytes);

  std::unique_ptr<Transport> hosts_;
  std::shared_ptr<DeviceStreams> streams_;
  TransportOptions options_;
  DeviceStreams::Stream out_, in_;
  std::deque<std::shared_ptr<Staged>> under_way_;        ///< in the order they began
  std::map<std::size_t, std::vector<at::Tensor>> free_;  ///< host memory, by bytes
  std::function<void()> background_;
};

}  // namespace stagecraft::transport
