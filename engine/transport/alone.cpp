#include "engine/transport/alone.h"

#include "base/error.h"

namespace stagecraft::transport {
namespace {

class NoSum : public ReplicaSum {
 public:
  void add(const at::Tensor&) override {}
  void add(const std::vector<at::Tensor>&) override {}
  void flush() override {}
  void poll() override {}
  void finish() override {}
};

/// Of norms, so that theirs is finite.
class Ones final : public NoSum {
 public:
  using NoSum::add;
  void add(const at::Tensor& tensor) override { tensor.fill_(1); }
};

}  // namespace

RequestPtr AloneTransport::post_receive(Rank /*from*/, const Tag& /*tag*/, const at::Tensor& into) {
  const bool number = into.is_floating_point() || into.scalar_type() == at::kBool;
  into.fill_(number ? 1 : 0);
  return std::make_unique<Request>();
}

RequestPtr AloneTransport::start_send(Rank to, const Tag& tag, const at::Tensor& tensor) {
  return post_send(to, tag, tensor);
}

RequestPtr AloneTransport::post_send(Rank /*to*/, const Tag& /*tag*/, const at::Tensor& /*tensor*/) {
  return std::make_unique<Request>();
}

std::unique_ptr<ReplicaSum> AloneTransport::make_sum(const std::vector<Rank>& /*copies*/, const Tag& tag) {
  if (tag.is_norms()) return std::make_unique<Ones>();
  return std::make_unique<NoSum>();
}

std::vector<std::vector<double>> AloneTransport::all_gather(const std::vector<double>& /*mine*/) {
  std::vector<std::vector<double>> all;
  for (const std::size_t count : gathered_) all.emplace_back(count, 1.0);
  return all;
}

std::vector<std::string> AloneTransport::all_gather_text(const std::string& mine) {
  return std::vector<std::string>(static_cast<std::size_t>(world()), mine);
}

void AloneTransport::gather_text(Rank to, const std::string& mine,
                                 const std::function<void(Rank from, const std::string& text)>& take) {
  if (to == rank()) take(rank(), mine);
}

int AloneTransport::finish_agreement() {
  STAGECRAFT_CHECK(!agreements_.empty(), "an agreement is asked for that nothing was brought to");
  const int mine = agreements_.front();
  agreements_.pop_front();
  return mine;
}

}  // namespace stagecraft::transport
