#include "engine/transport/nccl/launches.h"

#include "base/bounded.h"
#include "base/error.h"
#include "engine/transport/wait_error.h"

#include <fmt/format.h>

#include <utility>

namespace stagecraft::transport {

NcclOperation::NcclOperation(std::shared_ptr<DeviceStreams> its_streams, Kind its_kind, const Tag& its_tag,
                             Rank its_peer, std::vector<at::Tensor> its_tensors, HeldEvent::Kind kind_of_end)
    : end(std::move(its_streams), kind_of_end),
      tensors(std::move(its_tensors)),
      tag(its_tag),
      peer(its_peer),
      kind(its_kind) {}

std::string NcclOperation::name() const {
  return kind == Kind::sum ? name_sum(tag) : name_transfer(kind == Kind::send, tag, peer);
}

std::string NcclOperation::name_sum(const Tag& tag) {
  const char* const over = tag.is_norms() ? "ranks" : tag.is_tied() ? "layers" : "replicas";
  return fmt::format("sum over {} of {}", over, describe_tag(tag));
}

Launches::Launches(Rank rank, Waits& waits, std::shared_ptr<DeviceStreams> streams,
                   std::shared_ptr<NcclBackend> nccl)
    : rank_(rank), waits_(waits), streams_(std::move(streams)), nccl_(std::move(nccl)) {}

Launches::~Launches() {
  for (const auto& launched : under_way_) {
    if (launched->end.over()) continue;
    abort();
    break;
  }
}

void Launches::abort() noexcept {
  constexpr Seconds kPatience{5};
  (void)done_within(kPatience, [nccl = nccl_] { nccl->abort(); });
}

void Launches::await(const std::shared_ptr<NcclOperation>& launched) {
  constexpr auto kCompute = DeviceStreams::Stream::compute;
  if (!launched->awaited) launched->awaited.emplace(streams_);
  launched->awaited->record(kCompute);
  awaited_.push_back(launched);
  launched->end.before(kCompute);
}

void Launches::listen() {
  const auto drop_what_is_over = [this](std::deque<std::shared_ptr<NcclOperation>>& launches) {
    while (!launches.empty() && launches.front()->end.over()) {
      launches.front()->wait.reset();
      launches.pop_front();
    }
  };
  drop_what_is_over(under_way_);
  drop_what_is_over(awaited_);
  if (const auto failure = nccl_->failure()) {
    const auto suspect = !awaited_.empty()     ? awaited_.front()->name()
                         : !under_way_.empty() ? under_way_.front()->name()
                                               : std::string("its work");
    throw PeerError(fmt::format("rank {}: gave up {}: NCCL says: {}", rank_.value, suspect, *failure));
  }
  if (awaited_.empty()) return;
  NcclOperation& next = *awaited_.front();
  if (!next.wait && next.awaited->over()) next.wait.emplace(waits_, next.begun);
  if (next.wait) next.wait->check([&] { return next.name(); });
}

}  // namespace stagecraft::transport
