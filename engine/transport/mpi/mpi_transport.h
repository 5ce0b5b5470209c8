#pragma once

// Ranks as MPI processes. Point to point over MPI_Isend (MPI_Issend for synchronous sends) and MPI_Irecv;
// every wait polls, so that it can time out and hear of failures. Reasons of failures travel on a
// communicator of their own.

#include "engine/transport/mpi/mpi_session.h"
#include "engine/transport/mpi/mpi_tag.h"
#include "engine/transport/transport.h"

#include <mpi.h>

#include <array>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace stagecraft::transport {

class MpiTransport final : public Transport {
 public:
  /// Collective over the first `ranks` of the session's world.
  MpiTransport(MpiSession& session, const TransportOptions& options, int ranks);
  ~MpiTransport() override;
  MpiTransport(const MpiTransport&) = delete;
  MpiTransport& operator=(const MpiTransport&) = delete;

  [[nodiscard]] Rank rank() const override { return session_.rank(); }
  [[nodiscard]] int world() const override { return world_; }
  [[nodiscard]] std::string name() const override { return "mpi"; }
  [[nodiscard]] bool takes_device_memory() const override { return takes_device_memory_; }

  [[nodiscard]] RequestPtr post_receive(Rank from, const Tag& tag, const at::Tensor& into) override;
  [[nodiscard]] RequestPtr start_send(Rank to, const Tag& tag, const at::Tensor& tensor) override;
  [[nodiscard]] RequestPtr post_send(Rank to, const Tag& tag, const at::Tensor& tensor) override;
  [[nodiscard]] Waits& waits() override { return waits_; }
  [[nodiscard]] bool test(Request& request) override;
  void wait(Request& request) override;
  void progress() override;
  void set_background(std::function<void()> work) override { background_ = std::move(work); }

  void barrier() override;
  [[nodiscard]] std::vector<std::vector<double>> all_gather(const std::vector<double>& mine) override;
  [[nodiscard]] std::vector<std::string> all_gather_text(const std::string& mine) override;
  void gather_text(Rank to, const std::string& mine,
                   const std::function<void(Rank from, const std::string& text)>& take) override;
  [[nodiscard]] std::string broadcast(const std::string& text) override;

  void begin_agreement(int mine) override;
  [[nodiscard]] int finish_agreement() override;

  void fail(const std::string& reason) noexcept override { alarm(kEnds + reason); }
  void call_off(const std::string& reason) noexcept override { alarm(kMeets + reason); }
  [[nodiscard]] std::unique_ptr<Transport> meeting_place(const TransportOptions& options) override {
    return std::make_unique<MpiTransport>(session_, options, world_);
  }

 private:
  using Clock = std::chrono::steady_clock;
  struct MpiRequest;
  struct Agreement {
    int mine = 0;
    int most = 0;
    MPI_Request request = MPI_REQUEST_NULL;
  };

  /// What an alarm's text begins with: what its sender does next.
  static constexpr char kEnds = 'e', kMeets = 'm';
  void alarm(const std::string& text) noexcept;

  /// Polls until `done`. `what` names the wait, for PeerError.
  void poll(const std::function<bool()>& done, const std::function<std::string()>& what,
            Clock::time_point begun);
  /// Waits for a collective. `memory` holds its buffers, should the wait fail.
  void finish(MPI_Request request, const std::shared_ptr<void>& memory, const std::string& what);
  [[nodiscard]] std::vector<std::string> gather(const std::string& mine);
  /// A text of any length from or to another rank, in pieces.
  [[nodiscard]] std::string receive_text(Rank from);
  void send_text(Rank to, const std::string& text);
  /// Throws PeerError when another rank has failed.
  void listen(const std::function<std::string()>& what);

  MpiSession& session_;
  const int world_;
  const TransportOptions options_;
  Waits waits_;
  const bool takes_device_memory_;
  MpiTagLayout tags_;
  MPI_Comm data_ = MPI_COMM_NULL;
  MPI_Comm texts_ = MPI_COMM_NULL;  ///< gather_text's messages, which meet by their order
  MPI_Comm agreements_ = MPI_COMM_NULL;
  std::deque<std::shared_ptr<Agreement>> begun_;  ///< agreements, the oldest first
  MPI_Comm alarm_ = MPI_COMM_NULL;
  MPI_Request alarm_request_ = MPI_REQUEST_NULL;
  std::shared_ptr<std::array<char, 1024>> alarm_text_;
  std::function<void()> background_;
  Clock::time_point looked_{};  ///< by progress()
};

}  // namespace stagecraft::transport
