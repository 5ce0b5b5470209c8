#pragma once

// Ranks as threads of one process.

#include "engine/transport/local/hub.h"

#include <memory>
#include <string>
#include <vector>

namespace stagecraft::transport {

class LocalTransport final : public Transport {
 public:
  LocalTransport(std::shared_ptr<LocalHub> hub, Rank rank);

  [[nodiscard]] Rank rank() const override { return rank_; }
  [[nodiscard]] int world() const override { return hub_->world(); }
  [[nodiscard]] std::string name() const override { return "local"; }

  [[nodiscard]] RequestPtr post_receive(Rank from, const Tag& tag, const at::Tensor& into) override;
  [[nodiscard]] RequestPtr start_send(Rank to, const Tag& tag, const at::Tensor& tensor) override;
  [[nodiscard]] RequestPtr post_send(Rank to, const Tag& tag, const at::Tensor& tensor) override;
  [[nodiscard]] Waits& waits() override { return waits_; }
  [[nodiscard]] bool test(Request& request) override;
  void wait(Request& request) override;
  /// Transfers need no help: the half that comes second does all the work at once.
  void progress() override;
  void set_background(std::function<void()> work) override { background_ = std::move(work); }

  void barrier() override;
  [[nodiscard]] std::vector<std::vector<double>> all_gather(const std::vector<double>& mine) override;
  [[nodiscard]] std::vector<std::string> all_gather_text(const std::string& mine) override;
  void gather_text(Rank to, const std::string& mine,
                   const std::function<void(Rank from, const std::string& text)>& take) override;
  [[nodiscard]] std::string broadcast(const std::string& text) override;

  void begin_agreement(int mine) override { hub_->begin_agreement(rank_, mine); }
  [[nodiscard]] int finish_agreement() override { return hub_->finish_agreement(rank_, waits_, background_); }

  void fail(const std::string& reason) noexcept override { hub_->fail(rank_, reason); }
  void call_off(const std::string& reason) noexcept override { hub_->fail(rank_, reason, /*meets=*/true); }
  [[nodiscard]] std::unique_ptr<Transport> meeting_place(const TransportOptions& options) override {
    return std::make_unique<LocalTransport>(hub_->second(options), rank_);
  }

 private:
  [[nodiscard]] RequestPtr begin(bool send, Rank peer, const Tag& tag, const at::Tensor& tensor);

  std::shared_ptr<LocalHub> hub_;
  Rank rank_;
  Waits waits_;
  std::function<void()> background_;
};

}  // namespace stagecraft::transport
