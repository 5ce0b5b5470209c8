#include "stagecraft/engine/exchanged_sum.h"

#include "stagecraft/base/error.h"
#include "stagecraft/schedules/rules/reductions.h"

#include <ATen/ops/empty.h>

#include <algorithm>

namespace stagecraft {
namespace {

/// Of a large tensor; many are under way at a time.
constexpr std::int64_t kPiece = 1 << 20;

}  // namespace

ExchangedSum::ExchangedSum(Transport& transport, const std::vector<Rank>& replicas, const Tag& tag,
                           Bytes bytes, at::Device device)
    : transport_(transport),
      replicas_(replicas),
      tag_(tag),
      staging_(at::empty({reduce_staging(bytes, static_cast<int>(replicas.size())).value},
                         at::TensorOptions(device).dtype(at::kByte))) {
  const auto mine = std::find(replicas.begin(), replicas.end(), transport.rank());
  STAGECRAFT_CHECK(mine != replicas.end() && replicas.size() > 1, "a replica takes part in its own sum");
  me_ = static_cast<std::int64_t>(mine - replicas.begin());
}

void ExchangedSum::add(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.view({-1});
  const auto bytes = static_cast<std::int64_t>(flat.nbytes());
  if (bytes > kReducePack.value) {
    const std::int64_t most = kPiece / static_cast<std::int64_t>(flat.element_size());
    for (std::int64_t begin = 0; begin < flat.numel(); begin += most) {
      waiting_.push_back({.of = {flat.narrow(0, begin, std::min(most, flat.numel() - begin))}});
    }
    return;
  }
  if (!small_.empty() &&
      (small_bytes_ + bytes > kReducePack.value || small_.front().scalar_type() != flat.scalar_type())) {
    flush();
  }
  small_.push_back(flat);
  small_bytes_ += bytes;
}

void ExchangedSum::flush() {
  if (!small_.empty()) waiting_.push_back({.of = std::move(small_)});
  small_.clear();
  small_bytes_ = 0;
}

void ExchangedSum::poll() {
  for (bool moved = true; moved;) {
    moved = false;
    if (!gathering_.empty() && arrived(gathering_.front())) {
      complete(gathering_.front());
      gathering_.pop_front();
      moved = true;
    }
    if (!scattering_.empty() && arrived(scattering_.front())) {
      add_others(scattering_.front());
      gathering_.push_back(std::move(scattering_.front()));
      scattering_.pop_front();
      gather(gathering_.back());
      moved = true;
    }
    if (!waiting_.empty() && stage(waiting_.front())) {
      scattering_.push_back(std::move(waiting_.front()));
      waiting_.pop_front();
      scatter(scattering_.back());
      moved = true;
    }
  }
}

void ExchangedSum::finish() {
  flush();
  for (poll(); !scattering_.empty() || !gathering_.empty(); poll()) {
    const Piece& next = scattering_.empty() ? gathering_.front() : scattering_.front();
    const std::shared_ptr<Request> one = next.requests.back();  // not arrived: there is one
    transport_.wait(*one);
  }
  STAGECRAFT_CHECK(waiting_.empty(), "the staging memory has room for every piece");
}

/// The last parts are the larger ones, by a number.
at::Tensor ExchangedSum::part(const at::Tensor& values, std::int64_t replica) const {
  const std::int64_t begin = values.numel() * replica / replicas();
  const std::int64_t end = values.numel() * (replica + 1) / replicas();
  return values.narrow(0, begin, end - begin);
}

/// Memory for what is beside the tensors, if there is room: taken piece after piece until the end, and from
/// the beginning again when nobody needs it any more.
bool ExchangedSum::stage(Piece& piece) {
  std::int64_t numbers = 0;
  for (const at::Tensor& tensor : piece.of) numbers += tensor.numel();
  const at::Tensor& like = piece.of.front();
  const std::int64_t part = numbers * (me_ + 1) / replicas() - numbers * me_ / replicas();
  const std::int64_t others = (replicas() - 1) * part;
  const std::int64_t all = others + (piece.packed() ? numbers : 0);
  const std::int64_t bytes = all * static_cast<std::int64_t>(like.element_size());
  if (staging_pieces_ == 0) staged_ = 0;
  if (staged_ + bytes > staging_.numel()) return false;
  const at::Tensor memory = staging_.narrow(0, staged_, bytes).view(like.scalar_type());
  staged_ += (bytes + kReduceLine - 1) / kReduceLine * kReduceLine;
  ++staging_pieces_;
  piece.others = memory.narrow(0, 0, others).view({replicas() - 1, part});
  piece.values = piece.packed() ? memory.narrow(0, others, numbers) : like;
  return true;
}

bool ExchangedSum::arrived(Piece& piece) {
  while (!piece.requests.empty() && transport_.test(*piece.requests.back())) piece.requests.pop_back();
  return piece.requests.empty();
}

void ExchangedSum::scatter(Piece& piece) {
  if (piece.packed()) {
    std::int64_t at = 0;
    for (const at::Tensor& tensor : piece.of) {
      piece.values.narrow(0, at, tensor.numel()).copy_(tensor);
      at += tensor.numel();
    }
  }
  exchange(
      piece, 0, [&](std::int64_t from) { return piece.others.select(0, from < me_ ? from : from - 1); },
      [&](std::int64_t to) { return part(piece.values, to); });
}

void ExchangedSum::gather(Piece& piece) {
  exchange(
      piece, 1, [&](std::int64_t from) { return part(piece.values, from); },
      [&](std::int64_t) { return part(piece.values, me_); });
}

/// To and from every other replica; empty parts (fewer numbers than replicas) do not travel.
template <class Into, class From>
void ExchangedSum::exchange(Piece& piece, std::int32_t index, const Into& into, const From& from) {
  const Tag tag = Tag::reduction(tag_.from, tag_.group(), index);
  const auto each = [&](const auto& begin) {
    for (std::int64_t step = 1; step < replicas(); ++step) {
      const std::int64_t peer = (me_ + step) % replicas();
      begin(replicas_[static_cast<std::size_t>(peer)], peer);
    }
  };
  each([&](Rank rank, std::int64_t peer) {
    const at::Tensor tensor = into(peer);
    if (tensor.numel() > 0) piece.requests.emplace_back(transport_.post_receive(rank, tag, tensor));
  });
  each([&](Rank rank, std::int64_t peer) {
    const at::Tensor tensor = from(peer);
    if (tensor.numel() > 0) piece.requests.emplace_back(transport_.post_send(rank, tag, tensor));
  });
}

/// In the order of the replicas: own is the me_-th. (The first two may change places: a + b = b + a.)
void ExchangedSum::add_others(Piece& piece) {
  const at::Tensor own = part(piece.values, me_);
  const at::Tensor& others = piece.others;
  if (me_ <= 1) {
    for (std::int64_t i = 0; i < others.size(0); ++i) own.add_(others[i]);
  } else {
    const at::Tensor sum = others[0];
    for (std::int64_t i = 1; i < others.size(0); ++i) {
      if (i == me_) sum.add_(own);
      sum.add_(others[i]);
    }
    if (me_ == others.size(0)) sum.add_(own);
    own.copy_(sum);
  }
  if (!piece.packed()) --staging_pieces_;
}

void ExchangedSum::complete(Piece& piece) {
  if (!piece.packed()) return;
  std::int64_t at = 0;
  for (const at::Tensor& tensor : piece.of) {
    tensor.copy_(piece.values.narrow(0, at, tensor.numel()));
    at += tensor.numel();
  }
  --staging_pieces_;
}

}  // namespace stagecraft
