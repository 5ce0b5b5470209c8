#pragma once

// Ranks as processes with a device each: tensors travel by NCCL from device to device, what the hosts alone
// need (collectives, reasons of failures) over the transport of the hosts.
//
// Transfers are launched, not carried out: an NCCL call goes on the channel's stream, and wait() of a receive
// puts an event of that stream before what is computed next. What is launched occupies the device until both
// ends are there, and whenever CUDA makes a host wait for its whole device (a kernel is loaded, memory is had
// or given back), that host launches nothing more (schedules/rules/device_waits.h). So nothing is launched
// before its other end is certain:
//
//   post_receive(), start_send()  mark the compute stream: an end is ready when the device has come to the
//                                 mark, where what is sent is computed, or the slot read by all
//   the rank of the higher number rings (bells.h) when its end is ready, and launches when it hears that the
//                                 other has launched
//   the lower rank                launches when its end is ready and it has heard, then rings
//
// Between the two launches it is always the lower rank whose device waits for the other's host, so hosts that
// wait for their devices, however many at once, never wait for each other in a circle. And no receive spins
// for longer than its transfer and a bell. Whoever waits for a transfer polls it: the host waits until a
// receive is launched, or a send over, and what the program's proof takes for granted, that the other end comes,
// is all that it waits for. So the host is ahead of its device by no more than it has received.
//
// Sums over replicas and tied weights are launched once all members' hosts have joined them (nccl_sum.h), on
// streams of theirs.
//
// A launch cannot time out by itself. Each call therefore polls those that are not over (launches.h): one
// that the device has waited for too long, an asynchronous error of NCCL's, or another rank's failure throws
// PeerError; fail() aborts the communicators, so that streams end and the process can. A host that must wait
// for the device polls it too, and calls progress() meanwhile (AsyncScalars::await, Worker::settle); so does
// the hosts' transport in its collectives.

#include "engine/device/nccl_backend.h"
#include "engine/transport/nccl/bells.h"
#include "engine/transport/nccl/launches.h"
#include "engine/transport/nccl/nccl_sum.h"
#include "engine/transport/nccl/wiring.h"
#include "engine/transport/transport.h"

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace stagecraft::transport {

class NcclTransport final : public Transport {
 public:
  /// Collective: all ranks come with the same `wiring`, that of all programs of the run. Throws InputError
  /// where a rank has a part in more of it than the device has queues.
  NcclTransport(std::unique_ptr<Transport> hosts, std::shared_ptr<DeviceStreams> streams,
                std::shared_ptr<NcclBackend> nccl, const NcclWiring& wiring);
  ~NcclTransport() override;
  NcclTransport(const NcclTransport&) = delete;
  NcclTransport& operator=(const NcclTransport&) = delete;

  [[nodiscard]] Rank rank() const override { return hosts_->rank(); }
  [[nodiscard]] int world() const override { return hosts_->world(); }
  [[nodiscard]] std::string name() const override { return "nccl"; }

  [[nodiscard]] RequestPtr post_receive(Rank from, const Tag& tag, const at::Tensor& into) override;
  [[nodiscard]] RequestPtr start_send(Rank to, const Tag& tag, const at::Tensor& tensor) override;
  /// Neither blocks: the same.
  [[nodiscard]] RequestPtr post_send(Rank to, const Tag& tag, const at::Tensor& tensor) override;
  [[nodiscard]] bool test(Request& request) override;
  void wait(Request& request) override;
  [[nodiscard]] Waits& waits() override { return hosts_->waits(); }
  void progress() override { hosts_->progress(); }  // moves ours as well
  void set_background(std::function<void()> work) override { background_ = std::move(work); }
  [[nodiscard]] std::unique_ptr<ReplicaSum> make_sum(const std::vector<Rank>& copies,
                                                     const Tag& tag) override;

  void barrier() override { hosts_->barrier(); }
  [[nodiscard]] std::vector<std::vector<double>> all_gather(const std::vector<double>& mine) override {
    return hosts_->all_gather(mine);
  }
  [[nodiscard]] std::vector<std::string> all_gather_text(const std::string& mine) override {
    return hosts_->all_gather_text(mine);
  }
  void gather_text(Rank to, const std::string& mine,
                   const std::function<void(Rank from, const std::string& text)>& take) override {
    hosts_->gather_text(to, mine, take);
  }
  [[nodiscard]] std::string broadcast(const std::string& text) override { return hosts_->broadcast(text); }

  /// A device whose program was cut short has no state to save.
  void call_off(const std::string& reason) noexcept override { fail(reason); }
  [[nodiscard]] std::unique_ptr<Transport> meeting_place(const TransportOptions& options) override {
    return hosts_->meeting_place(options);
  }
  void begin_agreement(int mine) override { hosts_->begin_agreement(mine); }
  [[nodiscard]] int finish_agreement() override { return hosts_->finish_agreement(); }
  void fail(const std::string& reason) noexcept override;

 private:
  struct NcclRequest;
  struct P2pChannel {
    int channel = 0;
    DeviceStreams::Stream stream{};
    std::deque<std::shared_ptr<NcclOperation>> begun{};  ///< not launched yet, in their order
  };

  void open(const std::vector<NcclChannel>& channels, const std::vector<NcclGroup>& groups);
  void check_queues(const std::vector<NcclChannel>& channels, const std::vector<NcclGroup>& groups) const;
  [[nodiscard]] std::vector<std::string> ids_of(const std::vector<Rank>& makers);
  [[nodiscard]] RequestPtr begin(bool send, Rank peer, const Tag& tag, const at::Tensor& tensor);
  /// Rings and launches what can be.
  void move();
  void move(P2pChannel& line);
  void launch(const P2pChannel& line, const std::shared_ptr<NcclOperation>& operation);

  std::unique_ptr<Transport> hosts_;
  TransportRules rules_;
  SumOrder order_;
  std::shared_ptr<DeviceStreams> streams_;
  std::shared_ptr<NcclBackend> nccl_;
  std::map<NcclChannel, P2pChannel> lines_;  ///< with an end here
  std::map<NcclGroup, Lane> groups_;         ///< with this rank among the members
  Launches launches_;
  Bells bells_;
  std::function<void()> background_;
};

}  // namespace stagecraft::transport
