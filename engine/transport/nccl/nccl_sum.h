#pragma once

// A sum over replicas that NCCL makes while the rank computes. The host only launches: what is handed in goes
// to the device at once, behind an event of the compute stream, and finish() puts the event behind the last
// launch before what is computed next. There is no memory beside the tensors, and no copy: small tensors are
// collected until a launch takes several at once.
//
// Two replicas, or any number in NCCL's own order: an all-reduce. More, in the replicas' order: a chain.
// Replica 0 gives its values to replica 1, which adds its own and gives the sum to replica 2; the last one
// has the sum and broadcasts it. Each step is a reduction of two members, so whatever NCCL does within, a
// number is ((g0 + g1) + g2) + ... Launches follow each other through the chain like micro-batches through a
// pipeline; every rank sends and receives each byte at most twice, where a ring of w does so 2 (w - 1) / w
// times.

#include "stagecraft/engine/transport/nccl/launches.h"
#include "stagecraft/engine/transport/replica_sum.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace stagecraft::transport {

/// A group that this rank is in, and the stream of its launches, which no other launch has.
struct Lane {
  int group = 0;
  DeviceStreams::Stream stream{};
};

/// How one replica of a stage sums.
struct SumLanes {
  Lane all;  ///< with all replicas
  // Of a chain, whose ends have one of them each:
  std::optional<Lane> previous;  ///< with the replica before
  std::optional<Lane> next;      ///< with the replica behind
  int replicas = 0;
};

class NcclSum final : public ReplicaSum {
 public:
  /// `launches` outlives it.
  NcclSum(Launches& launches, std::shared_ptr<DeviceStreams> streams, std::shared_ptr<NcclBackend> nccl,
          const SumLanes& lanes, const Tag& tag);

  void add(const at::Tensor& tensor) override;
  void flush() override;
  /// Nothing is left to do for the host.
  void poll() override {}
  void finish() override;

 private:
  void launch(std::vector<at::Tensor> tensors);

  Launches& launches_;
  std::shared_ptr<DeviceStreams> streams_;
  std::shared_ptr<NcclBackend> nccl_;
  SumLanes lanes_;
  Tag tag_;

  std::vector<at::Tensor> small_;  ///< for one launch, flat
  std::int64_t small_bytes_ = 0;
  std::vector<std::shared_ptr<NcclOperation>> launched_;
};

}  // namespace stagecraft::transport
