#pragma once

// Ranks as processes of a c10d group, which torchrun started and Python connected. Threads of the session take in
// what comes (lines.h); the rank's own thread sleeps in a wait, and looks at the time and at signs of life there.

#include "engine/transport/c10d/c10d_session.h"
#include "engine/transport/c10d/mailbox.h"
#include "engine/transport/transport.h"

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace stagecraft::transport {

class C10dTransport final : public Transport {
 public:
  /// All ranks make theirs in the same order; none waits for the others here.
  C10dTransport(C10dSession& session, const TransportOptions& options, int ranks);

  [[nodiscard]] Rank rank() const override { return session_.rank(); }
  [[nodiscard]] int world() const override { return world_; }
  [[nodiscard]] std::string name() const override { return "c10d"; }
  [[nodiscard]] bool carries_tensors() const override;

  [[nodiscard]] RequestPtr post_receive(Rank from, const Tag& tag, const at::Tensor& into) override;
  [[nodiscard]] RequestPtr start_send(Rank to, const Tag& tag, const at::Tensor& tensor) override;
  [[nodiscard]] RequestPtr post_send(Rank to, const Tag& tag, const at::Tensor& tensor) override;
  [[nodiscard]] Waits& waits() override { return waits_; }
  /// Transfers need no help.
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

  void fail(const std::string& reason) noexcept override { alarm(reason, /*meets=*/false); }
  void call_off(const std::string& reason) noexcept override { alarm(reason, /*meets=*/true); }
  [[nodiscard]] std::unique_ptr<Transport> meeting_place(const TransportOptions& options) override {
    return std::make_unique<C10dTransport>(session_, options, world_);
  }

 private:
  struct C10dRequest;
  using What = std::function<std::string()>;

  [[nodiscard]] RequestPtr begin(bool send, bool texts, Rank peer, const Tag& tag, const at::Tensor& tensor);
  /// Until `done`. `what` names the wait, for PeerError; `peer` is who is waited for, all ranks if nobody.
  void poll(const std::function<bool()>& done, const What& what, std::optional<Rank> peer,
            std::chrono::steady_clock::time_point begun);
  /// Throws PeerError when another rank has failed, or is lost.
  void listen(const What& what);
  /// What all bring to a collective.
  [[nodiscard]] std::vector<std::string> exchange(const std::string& what, const std::string& mine);
  /// A text of any length to or from another rank, in pieces.
  void pass_text(bool send, Rank peer, std::string& text);
  void alarm(const std::string& reason, bool meets) noexcept;

  C10dSession& session_;
  const int world_;
  const TransportOptions options_;
  Mailbox& mailbox_;
  Waits waits_;
  std::uint32_t collectives_ = 0;  ///< that this rank came to
  std::uint32_t begun_ = 0;        ///< agreements
  std::uint32_t finished_ = 0;
  std::function<void()> background_;
};

}  // namespace stagecraft::transport
