#pragma once

// What a rank has launched over NCCL. The host waits for none of it, and a launch cannot time out by itself:
// whoever launches looks after those that are not over.
//
// Threads: belongs to its rank's thread.

#include "engine/device/nccl_lines.h"
#include "schedules/action.h"

#include <ATen/core/Tensor.h>

#include <chrono>
#include <deque>
#include <memory>
#include <string>
#include <vector>

namespace stagecraft::transport {

/// Something that was launched, and the event behind it.
struct Launch {
  enum class Kind { send, receive, sum };

  /// `its_peer`: none of a sum.
  Launch(std::shared_ptr<DeviceStreams> its_streams, Kind its_kind, const Tag& its_tag, Rank its_peer,
         std::vector<at::Tensor> its_tensors);
  ~Launch() { streams->give_event(end); }
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;

  [[nodiscard]] std::string name() const;

  std::shared_ptr<DeviceStreams> streams;
  DeviceStreams::Event end;
  std::vector<at::Tensor> tensors;  ///< that it works on, kept while nothing that is computed waits for it
  Tag tag;
  Rank peer;
  Kind kind;
  std::chrono::steady_clock::time_point begun = std::chrono::steady_clock::now();
};

class Launches {
 public:
  Launches(Rank rank, Seconds timeout, std::shared_ptr<DeviceStreams> streams,
           std::shared_ptr<NcclLines> nccl);
  /// Aborts NCCL where something is under way, before the tensors go that it works on.
  ~Launches();
  Launches(const Launches&) = delete;
  Launches& operator=(const Launches&) = delete;

  void add(std::shared_ptr<Launch> launched) { under_way_.push_back(std::move(launched)); }
  /// Throws PeerError where the oldest that is not over is older than the timeout, or where NCCL says that
  /// something has failed.
  void listen();

 private:
  Rank rank_;
  Seconds timeout_;
  std::shared_ptr<DeviceStreams> streams_;
  std::shared_ptr<NcclLines> nccl_;
  std::deque<std::shared_ptr<Launch>> under_way_;  ///< oldest first; some may be over
};

}  // namespace stagecraft::transport
