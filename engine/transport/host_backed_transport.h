#pragma once

// What transports of devices have in common that go by a transport of the hosts. A transfer passes through
// steps and must be polled between them. Every call here polls (move), and so does the hosts' transport while
// it waits. Collectives are the hosts' alone. Before one, pending transfers are flushed, because nothing polls
// during it.

#include "engine/device/streams.h"
#include "engine/transport/transport.h"

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace stagecraft::transport {

class HostBackedTransport : public Transport {
 public:
  ~HostBackedTransport() override;
  HostBackedTransport(const HostBackedTransport&) = delete;
  HostBackedTransport& operator=(const HostBackedTransport&) = delete;

  [[nodiscard]] Rank rank() const final { return hosts_->rank(); }
  [[nodiscard]] int world() const final { return hosts_->world(); }

  [[nodiscard]] RequestPtr post_receive(Rank from, const Tag& tag, const at::Tensor& into) final;
  [[nodiscard]] RequestPtr start_send(Rank to, const Tag& tag, const at::Tensor& tensor) final;
  /// No send blocks: the same.
  [[nodiscard]] RequestPtr post_send(Rank to, const Tag& tag, const at::Tensor& tensor) final;
  [[nodiscard]] Waits& waits() final { return hosts_->waits(); }
  void progress() final { hosts_->progress(); }  // moves ours as well
  void set_background(std::function<void()> work) final { background_ = std::move(work); }

  void barrier() final;
  [[nodiscard]] std::vector<std::vector<double>> all_gather(const std::vector<double>& mine) final;
  [[nodiscard]] std::vector<std::string> all_gather_text(const std::string& mine) final;
  void gather_text(Rank to, const std::string& mine,
                   const std::function<void(Rank from, const std::string& text)>& take) final;
  [[nodiscard]] std::string broadcast(const std::string& text) final;

  void call_off(const std::string& reason) noexcept final { hosts_->call_off(reason); }
  [[nodiscard]] std::unique_ptr<Transport> meeting_place(const TransportOptions& options) final {
    return hosts_->meeting_place(options);
  }
  void begin_agreement(int mine) final { hosts_->begin_agreement(mine); }
  [[nodiscard]] int finish_agreement() final { return hosts_->finish_agreement(); }
  void fail(const std::string& reason) noexcept final { hosts_->fail(reason); }

 protected:
  struct Transfer {
    Transfer(std::shared_ptr<DeviceStreams> its_streams, bool is_send, Rank its_peer, const Tag& its_tag,
             at::Tensor its_tensor);

    HeldEvent event;
    bool send;
    Rank peer;
    Tag tag;
    at::Tensor tensor;   ///< the device's
    RequestPtr request;  ///< of the hosts', once they have it
    std::chrono::steady_clock::time_point begun = std::chrono::steady_clock::now();
  };

  HostBackedTransport(std::unique_ptr<Transport> hosts, std::shared_ptr<DeviceStreams> streams);

  /// `tensor` is contiguous.
  [[nodiscard]] virtual RequestPtr begin(bool send, Rank peer, const Tag& tag, const at::Tensor& tensor) = 0;
  /// Takes every transfer its next step.
  virtual void move() = 0;
  /// Until the hosts' transport needs nobody here to go on.
  virtual void flush() = 0;

  /// Looks until `done`. `transfer` is what a timeout names.
  void poll(const Transfer& transfer, const std::function<bool()>& done);

  std::unique_ptr<Transport> hosts_;
  std::shared_ptr<DeviceStreams> streams_;

 private:
  [[nodiscard]] RequestPtr begin_checked(bool send, Rank peer, const Tag& tag, const at::Tensor& tensor);

  std::function<void()> background_;
};

}  // namespace stagecraft::transport
