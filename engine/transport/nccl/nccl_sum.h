#pragma once

// A sum over copies that NCCL makes while the rank computes. The host only launches: what is handed in goes
// to the device behind an event of the compute stream, and finish() puts the event behind the last launch
// before what is computed next. There is no memory beside the tensors, and no copy: small tensors are
// collected until a launch takes several at once.
//
// Nothing is launched before all members' hosts have joined the sum, which they tell each other (bells.h): from
// then on each of them hands in its tensors without need of anything that the others have not launched, so
// what is launched comes to its end (schedules/rules/device_waits.h).
//
// Two copies, or any number in NCCL's own order: an all-reduce. More, in the copies' order: a chain. Copy 0's
// rank gives its values to copy 1's, which adds them to its own and gives the sum to copy 2's; the last one
// has the sum and broadcasts it. Each step is a reduction of two members, so whatever NCCL does within, a
// number is ((g0 + g1) + g2) + ... Launches follow each other through the chain like micro-batches through a
// pipeline; with a copy per rank every rank sends and receives each byte at most twice, where a ring of w does
// so 2 (w - 1) / w times.
//
// Two copies behind each other on one rank are added by its compute stream: at once where the chain begins with
// them, else in finish(), which alone may wait for what comes before them. So what is behind them in the chain
// comes late; the order of layers puts such copies at an end, unless a rank holds several stages.

#include "engine/transport/nccl/bells.h"
#include "engine/transport/nccl/launches.h"
#include "engine/transport/replica_sum.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace stagecraft::transport {

/// A group that this rank is in, and the stream of its launches, which no other launch has.
struct Lane {
  int group = 0;
  DeviceStreams::Stream stream{};
};

/// A copy of this rank in a chain, and the lanes with those before and behind it that other ranks hold.
struct ChainPlace {
  std::optional<Lane> previous, next;
};

/// How one rank takes part in a sum.
struct SumLanes {
  Lane all;                       ///< with all ranks
  std::vector<ChainPlace> chain;  ///< of this rank's copies in their order; empty: an all-reduce
  int last = 0;                   ///< whose the chain's last copy is, among the members of `all`
};

class NcclSum final : public ReplicaSum {
 public:
  /// Joins the sum on rank `me`, one of `members`. `launches` and `bells` outlive it.
  NcclSum(Launches& launches, Bells& bells, std::shared_ptr<DeviceStreams> streams,
          std::shared_ptr<NcclBackend> nccl, SumLanes lanes, const std::vector<Rank>& members, Rank me,
          const Tag& tag);

  void add(const at::Tensor& tensor) override;
  void add(const std::vector<at::Tensor>& own) override;
  void flush() override;
  void poll() override { (void)all_joined(); }
  void finish() override;
  void time_spans() override { marks_ = HeldEvent::Kind::timed; }
  [[nodiscard]] Spans spans() override { return std::move(spans_); }

 private:
  using Tensors = std::vector<at::Tensor>;
  /// What goes through the launches together.
  struct Piece {
    std::vector<Tensors> copies;                ///< of this rank
    std::size_t at = 0;                         ///< the copy that the chain has come to
    std::shared_ptr<NcclOperation> launched{};  ///< since the compute stream has last waited for it
    std::shared_ptr<HeldEvent> leaves{};        ///< before the first launch, where spans are timed
    bool begun = false;                         ///< something is launched
    bool ends = false;                          ///< all is launched
  };

  void launch(std::vector<Tensors> copies);
  /// Whether all members have; launches what had to wait for that.
  bool all_joined();
  [[nodiscard]] std::shared_ptr<NcclOperation> marked(const Piece& piece);
  /// Launches as much as can be before the compute stream must wait for `launched`.
  void go_on(Piece& piece);
  /// Of all pieces, which are launched.
  [[nodiscard]] Spans timed_spans() const;

  Launches& launches_;
  Bells& bells_;
  std::shared_ptr<DeviceStreams> streams_;
  std::shared_ptr<NcclBackend> nccl_;
  SumLanes lanes_;
  Tag tag_;
  std::vector<Bell> absent_;  ///< bells of the members that have not joined, for all it is known

  Tensors small_;  ///< for one launch, flat
  std::int64_t small_bytes_ = 0;
  std::vector<Piece> pieces_;
  HeldEvent::Kind marks_ = HeldEvent::Kind::plain;
  Spans spans_;
};

}  // namespace stagecraft::transport
