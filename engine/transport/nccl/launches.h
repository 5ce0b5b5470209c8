#pragma once

// What a rank has launched over NCCL. The host waits for none of it, and a launch cannot time out by itself:
// whoever launches polls those that are not over.
//
// The host may run ahead of the device. So the time of a wait counts from the moment when the device has come
// to it: when all that was computed before is over, and nothing but this launch is waited for.
//
// Threads: belongs to its rank's thread.

#include "engine/device/nccl_backend.h"
#include "engine/transport/nccl/bells.h"
#include "engine/transport/transport.h"
#include "engine/transport/waits.h"
#include "schedules/program/action.h"

#include <ATen/core/Tensor.h>

#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace stagecraft::transport {

/// Something that is launched, and the event behind it.
struct NcclOperation {
  enum class Kind { send, receive, sum };

  /// `its_peer`: none of a sum.
  NcclOperation(std::shared_ptr<DeviceStreams> its_streams, Kind its_kind, const Tag& its_tag, Rank its_peer,
                std::vector<at::Tensor> its_tensors, HeldEvent::Kind kind_of_end = HeldEvent::Kind::plain);

  [[nodiscard]] std::string name() const;
  [[nodiscard]] static std::string name_sum(const Tag& tag);

  HeldEvent end;                    ///< behind the launch; before that, where its end here is ready
  bool launched = false;            ///< of a transfer
  Bell bell;                        ///< of a transfer: from the other end
  bool rung = false;                ///< likewise: to the other end, before the launch
  std::vector<at::Tensor> tensors;  ///< that it works on, kept while nothing that is computed waits for it
  Tag tag;
  Rank peer;
  Kind kind;
  std::chrono::steady_clock::time_point begun = std::chrono::steady_clock::now();
  std::optional<HeldEvent> awaited;  ///< where the compute stream begins to wait for it
  std::optional<Wait> wait;          ///< from when the device has come there
};

class Launches {
 public:
  /// `waits` outlives it.
  Launches(Rank rank, Waits& waits, std::shared_ptr<DeviceStreams> streams,
           std::shared_ptr<NcclBackend> nccl);
  /// Aborts NCCL where something is under way, before the tensors go that it works on.
  ~Launches();
  Launches(const Launches&) = delete;
  Launches& operator=(const Launches&) = delete;

  void add(std::shared_ptr<NcclOperation> launched) { under_way_.push_back(std::move(launched)); }
  /// What is computed from now on waits for `launched`.
  void await(const std::shared_ptr<NcclOperation>& launched);
  /// Ends all that NCCL has under way, or leaves a thread behind that tries: an abort waits for the device.
  void abort() noexcept;
  /// Throws PeerError where the device has waited too long for one, or NCCL says that something has failed.
  void listen();

 private:
  Rank rank_;
  Waits& waits_;
  std::shared_ptr<DeviceStreams> streams_;
  std::shared_ptr<NcclBackend> nccl_;
  std::deque<std::shared_ptr<NcclOperation>> under_way_;  ///< oldest first; some may be over
  std::deque<std::shared_ptr<NcclOperation>> awaited_;    ///< in the order in which the device comes to them
};

}  // namespace stagecraft::transport
