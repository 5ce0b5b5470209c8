#include "engine/transport/nccl/nccl_transport.h"

#include "base/error.h"
#include "engine/transport/wait_error.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace stagecraft::transport {

struct NcclTransport::NcclRequest final : Request {
  explicit NcclRequest(std::shared_ptr<NcclOperation> its_operation) : operation(std::move(its_operation)) {}
  std::shared_ptr<NcclOperation> operation;
};

NcclTransport::NcclTransport(std::unique_ptr<Transport> hosts, std::shared_ptr<DeviceStreams> streams,
                             std::shared_ptr<NcclBackend> nccl, const NcclWiring& wiring)
    : hosts_(std::move(hosts)),
      rules_(wiring.rules),
      order_(wiring.order),
      streams_(std::move(streams)),
      nccl_(std::move(nccl)),
      launches_(rank(), hosts_->waits(), streams_, nccl_),
      bells_(*hosts_, streams_) {
  open(wiring.channels, wiring.groups);
  hosts_->set_background([this] {
    move();
    if (background_) background_();
  });
}

NcclTransport::~NcclTransport() { hosts_->set_background(nullptr); }

void NcclTransport::open(const std::vector<NcclChannel>& channels, const std::vector<NcclGroup>& groups) {
  check_queues(channels, groups);
  // Numbers are places in the two lists. A channel's sender makes its id, a group's first member; all hear of
  // all.
  std::vector<Rank> makers;
  for (const NcclChannel& channel : channels) makers.push_back(channel.from);
  for (const NcclGroup& group : groups) makers.push_back(group.members.front());
  const std::vector<std::string> ids = ids_of(makers);
  std::vector<NcclBackend::Endpoint> ends;
  for (std::size_t i = 0; i < channels.size(); ++i) {
    const bool sends = channels[i].from == rank();
    if (sends || channels[i].to == rank()) ends.push_back({static_cast<int>(i), sends, ids[i]});
  }
  std::vector<NcclBackend::Membership> mine;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const std::vector<Rank>& members = groups[i].members;
    const auto me = std::find(members.begin(), members.end(), rank());
    if (me == members.end()) continue;
    mine.push_back({static_cast<int>(i), static_cast<int>(members.size()),
                    static_cast<int>(me - members.begin()), ids[channels.size() + i],
                    groups[i].sum.is_norms()});
  }
  for (const NcclBackend::Endpoint& end : ends) {
    lines_[channels[static_cast<std::size_t>(end.channel)]] = {end.channel, streams_->make_stream()};
  }
  for (const NcclBackend::Membership& one : mine) {
    groups_[groups[static_cast<std::size_t>(one.group)]] = {one.group, streams_->make_stream()};
  }
  nccl_->open(ends, mine, waits().bound());
}

/// The same on all ranks, or those that have enough would wait for the others.
void NcclTransport::check_queues(const std::vector<NcclChannel>& channels,
                                 const std::vector<NcclGroup>& groups) const {
  std::vector<int> wanted(static_cast<std::size_t>(world()), 0);
  for (const NcclChannel& channel : channels) {
    ++wanted.at(channel.from.index());
    ++wanted.at(channel.to.index());
  }
  for (const NcclGroup& group : groups) {
    for (const Rank member : group.members) ++wanted.at(member.index());
  }
  const int most = streams_->most_streams();
  const auto worst = std::max_element(wanted.begin(), wanted.end());
  if (*worst <= most) return;
  throw InputError(
      fmt::format("rank {} exchanges {} kinds of tensors with other ranks, and its device has {} queues for "
                  "them: with more, a transfer could wait behind another one for ever. Use fewer replicas a "
                  "stage, or comms.backend mpi",
                  worst - wanted.begin(), *worst, most));
}

/// As many as `makers`, each made by the rank that stands there.
std::vector<std::string> NcclTransport::ids_of(const std::vector<Rank>& makers) {
  std::string made;
  for (const Rank maker : makers) {
    if (maker == rank()) made += nccl_->make_id();
  }
  const std::vector<std::string> all = hosts_->all_gather_text(made);
  std::vector<std::size_t> counts(all.size(), 0);
  for (const Rank maker : makers) ++counts.at(maker.index());
  std::vector<std::size_t> next(all.size(), 0);
  std::vector<std::string> ids;
  for (const Rank maker : makers) {
    const std::size_t length = all[maker.index()].size() / counts[maker.index()];
    ids.push_back(all[maker.index()].substr(length * next[maker.index()]++, length));
  }
  return ids;
}

RequestPtr NcclTransport::begin(bool send, Rank peer, const Tag& tag, const at::Tensor& tensor) {
  launches_.listen();
  const auto line = lines_.find(channel_of(rules_, send ? rank() : peer, send ? peer : rank(), tag));
  STAGECRAFT_CHECK(line != lines_.end() && tensor.is_contiguous(),
                   fmt::format("rank {}: no channel for the {}, or its tensor is not contiguous",
                               rank().value, name_transfer(send, tag, peer)));
  const auto begun = std::make_shared<NcclOperation>(
      streams_, send ? NcclOperation::Kind::send : NcclOperation::Kind::receive, tag, peer,
      std::vector{tensor});
  begun->end.record(DeviceStreams::Stream::compute);
  begun->bell = bells_.expect(peer, tag);
  line->second.begun.push_back(begun);
  move(line->second);
  return std::make_unique<NcclRequest>(begun);
}

void NcclTransport::move() {
  launches_.listen();
  bells_.tidy();
  for (auto& [key, line] : lines_) move(line);
}

void NcclTransport::move(P2pChannel& line) {
  if (line.begun.empty()) return;
  const bool rings_first = rank() > line.begun.front()->peer;
  if (rings_first) {
    for (const auto& operation : line.begun) {
      if (operation->rung) continue;
      if (!operation->end.over()) break;
      bells_.ring(operation->peer, operation->tag);
      operation->rung = true;
    }
  }
  while (!line.begun.empty()) {
    const std::shared_ptr<NcclOperation> next = line.begun.front();
    const bool ready = rings_first ? next->rung : next->end.over();
    if (!ready || !bells_.heard(next->bell)) return;
    line.begun.pop_front();
    launch(line, next);
    if (!rings_first) bells_.ring(next->peer, next->tag);
  }
}

void NcclTransport::launch(const P2pChannel& line, const std::shared_ptr<NcclOperation>& operation) {
  const at::Tensor& tensor = operation->tensors.front();
  // What is sent has been computed, and what is received into has been read; the device is told all the same,
  // since a host's look at an event orders nothing.
  operation->end.before(line.stream);
  if (operation->kind == NcclOperation::Kind::send) {
    nccl_->send(line.channel, line.stream, tensor.const_data_ptr(), tensor.nbytes());
  } else {
    nccl_->receive(line.channel, line.stream, tensor.mutable_data_ptr(), tensor.nbytes());
  }
  operation->end.record(line.stream);
  operation->launched = true;
  launches_.add(operation);
}

RequestPtr NcclTransport::post_receive(Rank from, const Tag& tag, const at::Tensor& into) {
  return begin(/*send=*/false, from, tag, into);
}

RequestPtr NcclTransport::start_send(Rank to, const Tag& tag, const at::Tensor& tensor) {
  return post_send(to, tag, tensor);
}

RequestPtr NcclTransport::post_send(Rank to, const Tag& tag, const at::Tensor& tensor) {
  return begin(/*send=*/true, to, tag, tensor);
}

bool NcclTransport::test(Request& request) {
  move();
  const NcclOperation& operation = *dynamic_cast<NcclRequest&>(request).operation;
  return operation.launched && operation.end.over();
}

void NcclTransport::wait(Request& request) {
  const std::shared_ptr<NcclOperation>& operation = dynamic_cast<NcclRequest&>(request).operation;
  const bool send = operation->kind == NcclOperation::Kind::send;
  move();
  bells_.await([&] { return operation->launched && (!send || operation->end.over()); },
               [&] { return operation->name(); }, operation->begun);
  if (!send) launches_.await(operation);
  // Its memory may be had again by what is computed from now on, which waits for the launch.
  operation->tensors.clear();
}

std::unique_ptr<ReplicaSum> NcclTransport::make_sum(const std::vector<Rank>& copies, const Tag& tag) {
  const std::vector<Rank> ranks = ranks_of(copies);
  if (ranks.size() < 2) return nullptr;  // nothing travels
  Tag first = tag;
  first.number = 0;
  if (tag.is_norms() && !groups_.contains({first, NcclGroup::kAll, ranks})) return nullptr;
  const auto lane = [&](int link, std::vector<Rank> members) {
    const auto found = groups_.find({first, link, std::move(members)});
    STAGECRAFT_CHECK(found != groups_.end(), fmt::format("rank {}: nobody opened a communicator for {}",
                                                         rank().value, describe_tag(tag)));
    return found->second;
  };
  SumLanes lanes{.all = lane(NcclGroup::kAll, ranks), .chain = {}, .last = 0};
  lanes.last = static_cast<int>(std::find(ranks.begin(), ranks.end(), copies.back()) - ranks.begin());
  const std::size_t chained = by_chain(tag.is_norms() ? SumOrder::nccl : order_, copies) ? copies.size() : 0;
  for (std::size_t k = 0; k < chained; ++k) {
    if (copies[k] != rank()) continue;
    const auto before = static_cast<int>(k) - 1;
    ChainPlace& place = lanes.chain.emplace_back();
    if (k > 0 && copies[k - 1] != rank()) place.previous = lane(before, {copies[k - 1], rank()});
    if (k + 1 < chained && copies[k + 1] != rank()) place.next = lane(before + 1, {rank(), copies[k + 1]});
  }
  return std::make_unique<NcclSum>(launches_, bells_, streams_, nccl_, std::move(lanes), ranks, rank(), tag);
}

void NcclTransport::fail(const std::string& reason) noexcept {
  hosts_->fail(reason);
  launches_.abort();
}

}  // namespace stagecraft::transport
