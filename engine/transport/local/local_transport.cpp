#include "engine/transport/local/local_transport.h"

#include "engine/transport/request_check.h"
#include "engine/transport/texts.h"

namespace stagecraft::transport {
namespace {

struct LocalRequest final : Request {
  LocalRequest(std::shared_ptr<LocalHalf> begun, std::shared_ptr<const LocalHub> its_hub)
      : half(std::move(begun)), hub(std::move(its_hub)) {}
  ~LocalRequest() override {
    if (!half->done && !hub->failed()) report_unfinished(half->self, half->send, half->tag, half->peer);
  }
  LocalRequest(const LocalRequest&) = delete;
  LocalRequest& operator=(const LocalRequest&) = delete;

  std::shared_ptr<LocalHalf> half;
  std::shared_ptr<const LocalHub> hub;
};

}  // namespace

LocalTransport::LocalTransport(std::shared_ptr<LocalHub> hub, Rank rank)
    : hub_(std::move(hub)), rank_(rank), waits_(rank, hub_->options()) {}

RequestPtr LocalTransport::begin(bool send, Rank peer, const Tag& tag, const at::Tensor& tensor) {
  check_transfer(*this, send, tag, peer, tensor);
  auto half = std::make_shared<LocalHalf>();
  half->send = send;
  half->self = rank_;
  half->peer = peer;
  half->tag = tag;
  half->tensor = tensor;
  half->begun = std::chrono::steady_clock::now();
  hub_->begin(half);
  return std::make_unique<LocalRequest>(std::move(half), hub_);
}

RequestPtr LocalTransport::post_receive(Rank from, const Tag& tag, const at::Tensor& into) {
  return begin(/*send=*/false, from, tag, into);
}

RequestPtr LocalTransport::start_send(Rank to, const Tag& tag, const at::Tensor& tensor) {
  RequestPtr request = post_send(to, tag, tensor);
  if (hub_->options().synchronous_sends) wait(*request);
  return request;
}

RequestPtr LocalTransport::post_send(Rank to, const Tag& tag, const at::Tensor& tensor) {
  return begin(/*send=*/true, to, tag, tensor);
}

bool LocalTransport::test(Request& request) { return dynamic_cast<LocalRequest&>(request).half->done; }

void LocalTransport::wait(Request& request) {
  hub_->wait(*dynamic_cast<LocalRequest&>(request).half, waits_, background_);
}

void LocalTransport::progress() {
  waits_.pulse().beat();
  hub_->listen(rank_);
  if (background_) background_();
}

void LocalTransport::barrier() { (void)hub_->exchange(rank_, waits_, "barrier", "", background_); }

std::vector<std::vector<double>> LocalTransport::all_gather(const std::vector<double>& mine) {
  std::vector<std::vector<double>> all;
  for (const LocalHub::Text& part :
       hub_->exchange(rank_, waits_, "all_gather", bytes_of(mine), background_)) {
    all.push_back(numbers_in(*part));
  }
  return all;
}

std::vector<std::string> LocalTransport::all_gather_text(const std::string& mine) {
  std::vector<std::string> all;
  for (const LocalHub::Text& part : hub_->exchange(rank_, waits_, "all_gather_text", mine, background_)) {
    all.push_back(*part);
  }
  return all;
}

void LocalTransport::gather_text(Rank to, const std::string& mine,
                                 const std::function<void(Rank from, const std::string& text)>& take) {
  const std::vector<LocalHub::Text> all = hub_->exchange(rank_, waits_, "gather_text", mine, background_);
  if (rank_ != to) return;
  for (std::size_t r = 0; r < all.size(); ++r) take(Rank{r}, *all[r]);
}

std::string LocalTransport::broadcast(const std::string& text) {
  return *hub_->exchange(rank_, waits_, "broadcast", rank_.value == 0 ? text : std::string(), background_)
              .front();
}

}  // namespace stagecraft::transport
