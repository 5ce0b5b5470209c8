#include "engine/transport/nccl/launches.h"

#include "engine/transport/wait_error.h"
#include "schedules/base/error.h"

#include <fmt/format.h>

#include <utility>

namespace stagecraft::transport {

Launch::Launch(std::shared_ptr<DeviceStreams> its_streams, Kind its_kind, const Tag& its_tag, Rank its_peer,
               std::vector<at::Tensor> its_tensors)
    : streams(std::move(its_streams)),
      end(streams->take_event()),
      tensors(std::move(its_tensors)),
      tag(its_tag),
      peer(its_peer),
      kind(its_kind) {}

std::string Launch::name() const {
  if (kind == Kind::sum) return "sum over replicas of " + describe_tag(tag);
  return name_transfer(kind == Kind::send, tag, peer);
}

Launches::Launches(Rank rank, Seconds timeout, std::shared_ptr<DeviceStreams> streams,
                   std::shared_ptr<NcclLines> nccl)
    : rank_(rank), timeout_(timeout), streams_(std::move(streams)), nccl_(std::move(nccl)) {}

Launches::~Launches() {
  for (const auto& launched : under_way_) {
    if (streams_->over(launched->end)) continue;
    nccl_->abort();
    break;
  }
}

void Launches::listen() {
  while (!under_way_.empty() && streams_->over(under_way_.front()->end)) under_way_.pop_front();
  if (under_way_.empty()) return;
  const Launch& oldest = *under_way_.front();
  if (const auto failure = nccl_->failure()) {
    throw PeerError(fmt::format("rank {}: gave up {}: NCCL says: {}", rank_.value, oldest.name(), *failure));
  }
  const Seconds age{std::chrono::duration<double>(std::chrono::steady_clock::now() - oldest.begun).count()};
  if (age > timeout_) throw PeerError(timed_out(rank_, oldest.name(), age, timeout_));
}

}  // namespace stagecraft::transport
