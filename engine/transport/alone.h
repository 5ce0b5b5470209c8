#pragma once

// A transport behind which nobody is: what is sent goes nowhere, and what is received is there at once, made up. So a
// rank can carry out its program by itself, before the first transfer of a run (Worker::rehearse).
//
// Numbers made up are ones, whole numbers zeros, as are the bytes of several packed values: positions that any table
// has. Hosts are heard through the transport that it stands for, so another rank's failure ends a rehearsal as well.

#include "engine/transport/transport.h"

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace stagecraft::transport {

class AloneTransport final : public Transport {
 public:
  /// `real` outlives it. `gathered[r]`: how many numbers rank r brings to an all_gather; all are one, and so is
  /// their norm finite.
  AloneTransport(Transport& real, std::vector<std::size_t> gathered)
      : real_(real), gathered_(std::move(gathered)) {}

  [[nodiscard]] Rank rank() const override { return real_.rank(); }
  [[nodiscard]] int world() const override { return real_.world(); }
  [[nodiscard]] std::string name() const override { return "alone"; }
  [[nodiscard]] Waits& waits() override { return real_.waits(); }
  void progress() override { real_.progress(); }

  [[nodiscard]] RequestPtr post_receive(Rank from, const Tag& tag, const at::Tensor& into) override;
  [[nodiscard]] RequestPtr start_send(Rank to, const Tag& tag, const at::Tensor& tensor) override;
  [[nodiscard]] RequestPtr post_send(Rank to, const Tag& tag, const at::Tensor& tensor) override;
  [[nodiscard]] bool test(Request&) override { return true; }
  void wait(Request&) override {}
  void set_background(std::function<void()>) override {}
  /// Adds nothing; norms of gradients become ones.
  [[nodiscard]] std::unique_ptr<ReplicaSum> make_sum(const std::vector<Rank>& copies,
                                                     const Tag& tag) override;

  void barrier() override {}
  [[nodiscard]] std::vector<std::vector<double>> all_gather(const std::vector<double>& mine) override;
  [[nodiscard]] std::vector<std::string> all_gather_text(const std::string& mine) override;
  void gather_text(Rank to, const std::string& mine,
                   const std::function<void(Rank from, const std::string& text)>& take) override;
  [[nodiscard]] std::string broadcast(const std::string& text) override { return text; }
  void begin_agreement(int mine) override { agreements_.push_back(mine); }
  [[nodiscard]] int finish_agreement() override;

  void fail(const std::string& reason) noexcept override { real_.fail(reason); }
  void call_off(const std::string& reason) noexcept override { real_.call_off(reason); }
  [[nodiscard]] std::unique_ptr<Transport> meeting_place(const TransportOptions& options) override {
    return real_.meeting_place(options);
  }

 private:
  Transport& real_;
  std::vector<std::size_t> gathered_;
  std::deque<int> agreements_;
};

}  // namespace stagecraft::transport
