#include "engine/transport/nccl/nccl_transport.h"

#include "engine/transport/request_check.h"
#include "engine/transport/wait_error.h"
#include "schedules/base/error.h"

#include <fmt/format.h>

#include <utility>

namespace stagecraft::transport {

/// One NCCL call that was launched, and the event behind it.
struct NcclTransport::Launch {
  Launch(std::shared_ptr<DeviceStreams> its_streams, bool is_send, const Tag& its_tag, Rank its_peer,
         at::Tensor its_tensor)
      : streams(std::move(its_streams)),
        end(streams->take_event()),
        tensor(std::move(its_tensor)),
        tag(its_tag),
        peer(its_peer),
        send(is_send) {}
  ~Launch() { streams->give_event(end); }
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;

  std::shared_ptr<DeviceStreams> streams;
  DeviceStreams::Event end;
  at::Tensor tensor;
  Tag tag;
  Rank peer;
  bool send;
  Clock::time_point begun = Clock::now();
};

struct NcclTransport::NcclRequest final : Request {
  explicit NcclRequest(std::shared_ptr<Launch> its_launch) : launch(std::move(its_launch)) {}
  std::shared_ptr<Launch> launch;
};

NcclTransport::NcclTransport(std::unique_ptr<Transport> hosts, std::shared_ptr<DeviceStreams> streams,
                             std::shared_ptr<NcclLines> nccl, const TransportRules& rules,
                             const std::vector<NcclChannel>& channels, const TransportOptions& options)
    : hosts_(std::move(hosts)),
      rules_(rules),
      options_(options),
      streams_(std::move(streams)),
      nccl_(std::move(nccl)) {
  open(channels);
}

NcclTransport::~NcclTransport() {
  for (const auto& launched : under_way_) {
    if (streams_->over(launched->end)) continue;
    nccl_->abort();  // before the tensors go that it works on
    break;
  }
}

void NcclTransport::open(const std::vector<NcclChannel>& channels) {
  // A channel's number is its place in the list. Its sender makes the id; all hear of all.
  const auto sends = [&](const NcclChannel& channel) { return channel.from == rank(); };
  std::string ids;
  for (const NcclChannel& channel : channels) {
    if (sends(channel)) ids += nccl_->make_id();
  }
  const std::vector<std::string> all = hosts_->all_gather_text(ids);
  std::vector<std::size_t> made(all.size(), 0);
  for (const NcclChannel& channel : channels) ++made.at(channel.from.index());
  std::vector<std::size_t> next(all.size(), 0);
  std::vector<NcclLines::End> ends;
  for (std::size_t i = 0; i < channels.size(); ++i) {
    const std::size_t from = channels[i].from.index();
    const std::size_t length = all[from].size() / made[from];
    const std::string id = all[from].substr(length * next[from]++, length);
    if (!sends(channels[i]) && channels[i].to != rank()) continue;
    ends.push_back({static_cast<int>(i), sends(channels[i]), id});
  }
  const int most = streams_->most_streams();
  if (static_cast<int>(ends.size()) > most) {
    throw InputError(fmt::format(
        "rank {} exchanges {} kinds of tensors with other ranks, and its device has {} queues for "
        "them: with more, a transfer could wait behind another one for ever. Use fewer replicas a "
        "stage, or comms.backend mpi",
        rank().value, ends.size(), most));
  }
  for (const NcclLines::End& end : ends) {
    lines_[channels[static_cast<std::size_t>(end.channel)]] = {end.channel, streams_->make_stream()};
  }
  nccl_->open(ends, options_.timeout);
}

RequestPtr NcclTransport::launch(bool send, Rank peer, const Tag& tag, const at::Tensor& tensor) {
  listen();
  const auto line = lines_.find(channel_of(rules_, send ? rank() : peer, send ? peer : rank(), tag));
  STAGECRAFT_CHECK(line != lines_.end() && tensor.is_contiguous(),
                   fmt::format("rank {}: no channel for the {}, or its tensor is not contiguous",
                               rank().value, name_transfer(send, tag, peer)));
  const auto [channel, stream] = line->second;
  const auto launched = std::make_shared<Launch>(streams_, send, tag, peer, tensor);
  // What is sent must have been computed, and what is received into must have been read, before.
  streams_->record(launched->end, DeviceStreams::Stream::compute);
  streams_->wait(stream, launched->end);
  if (send) {
    nccl_->send(channel, stream, tensor.const_data_ptr(), tensor.nbytes());
  } else {
    nccl_->receive(channel, stream, tensor.mutable_data_ptr(), tensor.nbytes());
  }
  streams_->record(launched->end, stream);
  under_way_.push_back(launched);
  return std::make_unique<NcclRequest>(launched);
}

RequestPtr NcclTransport::post_receive(Rank from, const Tag& tag, const at::Tensor& into) {
  return launch(/*send=*/false, from, tag, into);
}

RequestPtr NcclTransport::start_send(Rank to, const Tag& tag, const at::Tensor& tensor) {
  // Never blocking: the proof under NCCL's rules knows of no send that does.
  return post_send(to, tag, tensor);
}

RequestPtr NcclTransport::post_send(Rank to, const Tag& tag, const at::Tensor& tensor) {
  return launch(/*send=*/true, to, tag, tensor);
}

bool NcclTransport::test(Request& request) {
  if (streams_->over(dynamic_cast<NcclRequest&>(request).launch->end)) return true;
  listen();
  return false;
}

void NcclTransport::wait(Request& request) {
  Launch& launched = *dynamic_cast<NcclRequest&>(request).launch;
  listen();
  streams_->wait(DeviceStreams::Stream::compute, launched.end);
  // Its memory may be had again by what is computed from now on, which waits for the launch.
  launched.tensor.reset();
}

void NcclTransport::progress() {
  listen();
  hosts_->progress();
}

void NcclTransport::set_background(std::function<void()> work) { hosts_->set_background(std::move(work)); }

void NcclTransport::listen() {
  while (!under_way_.empty() && streams_->over(under_way_.front()->end)) under_way_.pop_front();
  if (under_way_.empty()) return;
  const Launch& oldest = *under_way_.front();
  const std::string what = name_transfer(oldest.send, oldest.tag, oldest.peer);
  if (const auto failure = nccl_->failure()) {
    throw PeerError(fmt::format("rank {}: gave up {}: NCCL says: {}", rank().value, what, *failure));
  }
  const Seconds age{std::chrono::duration<double>(Clock::now() - oldest.begun).count()};
  if (age > options_.timeout) throw PeerError(timed_out(rank(), what, age, options_.timeout));
}

void NcclTransport::fail(const std::string& reason) noexcept {
  hosts_->fail(reason);
  nccl_->abort();
}

}  // namespace stagecraft::transport
