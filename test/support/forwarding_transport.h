#pragma once

#include "engine/transport/transport.h"

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace stagecraft::test {

/// A transport that does what another one does, which outlives it: for tests that change or watch some of its calls.
class ForwardingTransport : public Transport {
 public:
  explicit ForwardingTransport(Transport& inner) : inner_(inner) {}

  [[nodiscard]] Rank rank() const override { return inner_.rank(); }
  [[nodiscard]] int world() const override { return inner_.world(); }
  [[nodiscard]] std::string name() const override { return inner_.name(); }
  [[nodiscard]] bool takes_device_memory() const override { return inner_.takes_device_memory(); }
  [[nodiscard]] RequestPtr post_receive(Rank from, const Tag& tag, const at::Tensor& into) override {
    return inner_.post_receive(from, tag, into);
  }
  [[nodiscard]] RequestPtr start_send(Rank to, const Tag& tag, const at::Tensor& tensor) override {
    return inner_.start_send(to, tag, tensor);
  }
  [[nodiscard]] RequestPtr post_send(Rank to, const Tag& tag, const at::Tensor& tensor) override {
    return inner_.post_send(to, tag, tensor);
  }
  [[nodiscard]] bool test(Request& request) override { return inner_.test(request); }
  void wait(Request& request) override { inner_.wait(request); }
  [[nodiscard]] Waits& waits() override { return inner_.waits(); }
  void progress() override { inner_.progress(); }
  void set_background(std::function<void()> work) override { inner_.set_background(std::move(work)); }
  [[nodiscard]] std::unique_ptr<ReplicaSum> make_sum(const std::vector<Rank>& copies,
                                                     const Tag& tag) override {
    return inner_.make_sum(copies, tag);
  }
  void barrier() override { inner_.barrier(); }
  [[nodiscard]] std::vector<std::vector<double>> all_gather(const std::vector<double>& mine) override {
    return inner_.all_gather(mine);
  }
  [[nodiscard]] std::vector<std::string> all_gather_text(const std::string& mine) override {
    return inner_.all_gather_text(mine);
  }
  void gather_text(Rank to, const std::string& mine,
                   const std::function<void(Rank from, const std::string& text)>& take) override {
    inner_.gather_text(to, mine, take);
  }
  [[nodiscard]] std::string broadcast(const std::string& text) override { return inner_.broadcast(text); }
  void call_off(const std::string& reason) noexcept override { inner_.call_off(reason); }
  [[nodiscard]] std::unique_ptr<Transport> meeting_place(const TransportOptions& options) override {
    return inner_.meeting_place(options);
  }
  void begin_agreement(int mine) override { inner_.begin_agreement(mine); }
  [[nodiscard]] int finish_agreement() override { return inner_.finish_agreement(); }
  void fail(const std::string& reason) noexcept override { inner_.fail(reason); }

 private:
  Transport& inner_;
};

}  // namespace stagecraft::test
