#pragma once

// What a rank works with on a fake device, each call charged to whose work it is (meter.h).

#include "engine/device/graphs.h"
#include "test/bench/host_step/meter.h"
#include "test/support/fake_device.h"
#include "test/support/forwarding_transport.h"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace stagecraft::test {

template <class Call>
auto as_device(const Call& call) {
  Meter::here().called();
  const Meter::As device(Meter::Who::device);
  return call();
}

template <class Call>
void launch_on_device(const Call& call) {
  as_device(call);
  Meter::here().launched();
}

/// Streams and NCCL.
class MeteredDevice final : public DeviceStreams, public NcclBackend {
 public:
  using Stream = DeviceStreams::Stream;
  explicit MeteredDevice(std::shared_ptr<FakeDevice> device) : device_(std::move(device)) {}

  Stream make_stream() override { return device_->make_stream(); }
  int most_streams() const override { return device_->most_streams(); }
  Event take_event() override {
    return as_device([&] { return device_->take_event(); });
  }
  Event take_timed_event() override {
    return as_device([&] { return device_->take_timed_event(); });
  }
  Seconds between(Event begin, Event end) override { return device_->between(begin, end); }
  void give_event(Event event) override {
    as_device([&] { device_->give_event(event); });
  }
  void record(Event event, Stream stream) override {
    as_device([&] { device_->record(event, stream); });
  }
  void wait(Stream stream, Event event) override {
    as_device([&] { device_->wait(stream, event); });
  }
  bool over(Event event) override {
    return as_device([&] { return device_->over(event); });
  }
  void copy(Stream stream, void* to, const void* from, std::size_t bytes) override {
    launch_on_device([&] { device_->copy(stream, to, from, bytes); });
  }
  std::shared_ptr<void> host_memory(std::size_t bytes) override { return device_->host_memory(bytes); }

  std::string make_id() override { return device_->make_id(); }
  void open(const std::vector<Endpoint>& ends, const std::vector<Membership>& groups,
            Seconds timeout) override {
    device_->open(ends, groups, timeout);
  }
  void send(int channel, Stream stream, const void* from, std::size_t bytes) override {
    launch_on_device([&] { device_->send(channel, stream, from, bytes); });
  }
  void receive(int channel, Stream stream, void* into, std::size_t bytes) override {
    launch_on_device([&] { device_->receive(channel, stream, into, bytes); });
  }
  void all_reduce(int group, Stream stream, const std::vector<Numbers>& tensors) override {
    launch_on_device([&] { device_->all_reduce(group, stream, tensors); });
  }
  void reduce(int group, Stream stream, int root, const std::vector<Numbers>& tensors) override {
    launch_on_device([&] { device_->reduce(group, stream, root, tensors); });
  }
  void broadcast(int group, Stream stream, int root, const std::vector<Numbers>& tensors) override {
    launch_on_device([&] { device_->broadcast(group, stream, root, tensors); });
  }
  std::optional<std::string> failure() override {
    return as_device([&] { return device_->failure(); });
  }
  void abort() noexcept override { device_->abort(); }

 private:
  std::shared_ptr<FakeDevice> device_;
};

class MeteredGraphs final : public DeviceGraphs {
 public:
  explicit MeteredGraphs(std::shared_ptr<DeviceGraphs> graphs) : graphs_(std::move(graphs)) {}
  Pool make_pool() override { return graphs_->make_pool(); }
  std::unique_ptr<DeviceGraph> record(Pool pool, const std::function<void()>& work) override {
    return std::make_unique<Metered>(graphs_->record(pool, work));
  }

 private:
  class Metered final : public DeviceGraph {
   public:
    explicit Metered(std::unique_ptr<DeviceGraph> graph) : graph_(std::move(graph)) {}
    void launch() override {
      launch_on_device([&] { graph_->launch(); });
    }

   private:
    std::unique_ptr<DeviceGraph> graph_;
  };

  std::shared_ptr<DeviceGraphs> graphs_;
};

/// Between the hosts, below a device's transport.
class MeteredHosts final : public ForwardingTransport {
 public:
  using ForwardingTransport::ForwardingTransport;

  RequestPtr post_receive(Rank from, const Tag& tag, const at::Tensor& into) override {
    Meter::here().sent();
    return ForwardingTransport::post_receive(from, tag, into);
  }
  RequestPtr start_send(Rank to, const Tag& tag, const at::Tensor& tensor) override {
    Meter::here().sent();
    return ForwardingTransport::start_send(to, tag, tensor);
  }
  RequestPtr post_send(Rank to, const Tag& tag, const at::Tensor& tensor) override {
    Meter::here().sent();
    return ForwardingTransport::post_send(to, tag, tensor);
  }
  void wait(Request& request) override {
    const Meter::As waiting(Meter::Who::waiting);
    ForwardingTransport::wait(request);
  }
  std::vector<std::vector<double>> all_gather(const std::vector<double>& mine) override {
    const Meter::As waiting(Meter::Who::waiting);
    return ForwardingTransport::all_gather(mine);
  }
  void progress() override {
    Meter::here().turn();
    ForwardingTransport::progress();
    Meter::here().turn();
  }
};

/// What the engine calls, above a device's transport.
class MeteredTransport final : public ForwardingTransport {
 public:
  using ForwardingTransport::ForwardingTransport;
  void wait(Request& request) override {
    const Meter::Polling polling(/*works=*/true);
    ForwardingTransport::wait(request);
  }
  std::unique_ptr<ReplicaSum> make_sum(const std::vector<Rank>& copies, const Tag& tag) override {
    std::unique_ptr<ReplicaSum> sum = ForwardingTransport::make_sum(copies, tag);
    if (sum == nullptr) return nullptr;
    return std::make_unique<Metered>(std::move(sum));
  }

 private:
  class Metered final : public ReplicaSum {
   public:
    explicit Metered(std::unique_ptr<ReplicaSum> sum) : sum_(std::move(sum)) {}
    void add(const at::Tensor& tensor) override { sum_->add(tensor); }
    void add(const std::vector<at::Tensor>& own) override { sum_->add(own); }
    void flush() override { sum_->flush(); }
    void poll() override { sum_->poll(); }
    void finish() override {
      const Meter::Polling polling(/*works=*/true);
      sum_->finish();
    }

   private:
    std::unique_ptr<ReplicaSum> sum_;
  };
};

}  // namespace stagecraft::test
