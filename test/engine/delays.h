#pragma once

#include "test/support/forwarding_transport.h"

#include <chrono>
#include <cstdint>
#include <random>
#include <thread>

namespace stagecraft::test {

/// A transport whose calls now and then take their time: a result that depends on timing is a bug.
class DelayedTransport : public ForwardingTransport {
 public:
  DelayedTransport(Transport& inner, std::uint64_t seed)
      : ForwardingTransport(inner), random_(seed * 1000 + static_cast<std::uint64_t>(inner.rank().value)) {}

  [[nodiscard]] RequestPtr post_receive(Rank from, const Tag& tag, const at::Tensor& into) override {
    dawdle();
    return ForwardingTransport::post_receive(from, tag, into);
  }
  [[nodiscard]] RequestPtr start_send(Rank to, const Tag& tag, const at::Tensor& tensor) override {
    dawdle();
    return ForwardingTransport::start_send(to, tag, tensor);
  }
  [[nodiscard]] RequestPtr post_send(Rank to, const Tag& tag, const at::Tensor& tensor) override {
    dawdle();
    return ForwardingTransport::post_send(to, tag, tensor);
  }
  void wait(Request& request) override {
    dawdle();
    ForwardingTransport::wait(request);
  }
  [[nodiscard]] std::unique_ptr<ReplicaSum> make_sum(const std::vector<Rank>& copies,
                                                     const Tag& tag) override {
    dawdle();
    return ForwardingTransport::make_sum(copies, tag);
  }
  [[nodiscard]] std::vector<std::vector<double>> all_gather(const std::vector<double>& mine) override {
    dawdle();
    return ForwardingTransport::all_gather(mine);
  }

 private:
  void dawdle() {
    if (random_() % 16 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random_() % 300));
  }

  std::mt19937_64 random_;
};

}  // namespace stagecraft::test
