#include "engine/replica_sum.h"

#include "schedules/base/error.h"
#include "schedules/segments.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstdint>

namespace stagecraft {
namespace {

class ReplicaSum {
 public:
  ReplicaSum(Transport& transport, const std::vector<Rank>& replicas, const Tag& tag)
      : transport_(transport), replicas_(replicas), tag_(tag) {
    const auto mine = std::find(replicas.begin(), replicas.end(), transport.rank());
    STAGECRAFT_CHECK(mine != replicas.end(), "a replica takes part in its own sum");
    me_ = static_cast<std::int64_t>(mine - replicas.begin());
  }

  /// `piece` has one dimension.
  void sum(const at::Tensor& piece) {
    const at::Tensor own = part(piece, me_);
    const at::Tensor others = at::empty({width() - 1, own.numel()}, piece.options());
    exchange([&](std::int64_t from) { return others.select(0, from < me_ ? from : from - 1); },
             [&](std::int64_t to) { return part(piece, to); });
    add(own, others);
    exchange([&](std::int64_t from) { return part(piece, from); }, [&](std::int64_t) { return own; });
  }

 private:
  [[nodiscard]] std::int64_t width() const { return static_cast<std::int64_t>(replicas_.size()); }

  [[nodiscard]] at::Tensor part(const at::Tensor& piece, std::int64_t replica) const {
    const std::int64_t begin = piece.numel() * replica / width();
    const std::int64_t end = piece.numel() * (replica + 1) / width();
    return piece.narrow(0, begin, end - begin);
  }

  /// To and from every other replica. All receives are posted before the first send, which may wait for its
  /// receive; empty tensors (fewer numbers than replicas) do not travel.
  template <class Into, class From>
  void exchange(const Into& into, const From& from) {
    std::vector<RequestPtr> requests;
    const auto each = [&](const auto& begin) {
      for (std::int64_t step = 1; step < width(); ++step) {
        const std::int64_t peer = (me_ + step) % width();
        begin(replicas_[static_cast<std::size_t>(peer)], peer);
      }
    };
    each([&](Rank rank, std::int64_t peer) {
      const at::Tensor tensor = into(peer);
      if (tensor.numel() > 0) requests.push_back(transport_.post_receive(rank, tag_, tensor));
    });
    each([&](Rank rank, std::int64_t peer) {
      const at::Tensor tensor = from(peer);
      if (tensor.numel() > 0) requests.push_back(transport_.start_send(rank, tag_, tensor));
    });
    for (const RequestPtr& request : requests) transport_.wait(*request);
  }

  /// In the order of the replicas: own is the me_-th. (The first two may change places: a + b = b + a.)
  void add(const at::Tensor& own, const at::Tensor& others) const {
    if (me_ <= 1) {
      for (std::int64_t i = 0; i < others.size(0); ++i) own.add_(others[i]);
      return;
    }
    const at::Tensor sum = others[0];
    for (std::int64_t i = 1; i < others.size(0); ++i) {
      if (i == me_) sum.add_(own);
      sum.add_(others[i]);
    }
    if (me_ == others.size(0)) sum.add_(own);
    own.copy_(sum);
  }

  Transport& transport_;
  const std::vector<Rank>& replicas_;
  Tag tag_;
  std::int64_t me_ = 0;  ///< among the replicas
};

}  // namespace

void sum_over_replicas(Transport& transport, const std::vector<Rank>& replicas, const Tag& tag,
                       const std::vector<at::Tensor>& tensors) {
  ReplicaSum replica_sum(transport, replicas, tag);
  const auto width = static_cast<std::int64_t>(replicas.size());
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor flat = tensor.view({-1});
    // Staging is width - 1 parts of ceil(piece / width) numbers.
    const std::int64_t room = kReduceStaging.value / static_cast<std::int64_t>(tensor.element_size());
    const std::int64_t most = std::max(width, room / (width - 1) * width);
    for (std::int64_t begin = 0; begin < flat.numel(); begin += most) {
      replica_sum.sum(flat.narrow(0, begin, std::min(most, flat.numel() - begin)));
    }
  }
}

}  // namespace stagecraft
