#include "engine/core/exchanged_sum.h"

#include "base/error.h"
#include "schedules/rules/reductions.h"

#include <ATen/ops/empty.h>

#include <algorithm>

namespace stagecraft {
namespace {

/// Of a large tensor; many are under way at a time.
constexpr std::int64_t kPiece = 1 << 20;

}  // namespace

ExchangedSum::ExchangedSum(Transport& transport, const std::vector<Rank>& copies, const Tag& tag,
                           Bytes staging, at::Device device)
    : transport_(transport),
      tag_(tag),
      ranks_(ranks_of(copies)),
      staging_(at::empty({staging.value}, at::TensorOptions(device).dtype(at::kByte))) {
  const auto place_of = [&](Rank rank) {
    return std::find(ranks_.begin(), ranks_.end(), rank) - ranks_.begin();
  };
  for (const Rank rank : copies) copies_.push_back(place_of(rank));
  me_ = place_of(transport.rank());
  own_ = static_cast<std::size_t>(std::count(copies_.begin(), copies_.end(), me_));
  STAGECRAFT_CHECK(own_ > 0 && copies.size() > 1, "a rank takes part in a sum of its own and other copies");
}

void ExchangedSum::add(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.view({-1});
  const auto bytes = static_cast<std::int64_t>(flat.nbytes());
  if (bytes > kReducePack.value) return add(std::vector{tensor});
  if (!small_.empty() &&
      (small_bytes_ + bytes > kReducePack.value || small_.front().scalar_type() != flat.scalar_type())) {
    flush();
  }
  small_.push_back(flat);
  small_bytes_ += bytes;
}

void ExchangedSum::add(const std::vector<at::Tensor>& own) {
  STAGECRAFT_CHECK(own.size() == own_, "as many tensors as the rank has copies");
  const std::int64_t numbers = own.front().numel();
  const std::int64_t most = kPiece / static_cast<std::int64_t>(own.front().element_size());
  for (std::int64_t begin = 0; begin < numbers; begin += most) {
    const auto piece_of = [&](const at::Tensor& tensor) {
      return tensor.view({-1}).narrow(0, begin, std::min(most, numbers - begin));
    };
    Piece& piece = waiting_.emplace_back();
    piece.of = {piece_of(own.front())};
    for (std::size_t k = 1; k < own.size(); ++k) piece.more.push_back(piece_of(own[k]));
  }
}

void ExchangedSum::flush() {
  if (!small_.empty()) waiting_.emplace_back().of = std::move(small_);
  small_.clear();
  small_bytes_ = 0;
}

void ExchangedSum::poll() {
  for (bool moved = true; moved;) {
    moved = false;
    if (!gathering_.empty() && arrived(gathering_.front())) {
      progress_.done += gathering_.front().bytes();
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
      progress_.begun += scattering_.back().bytes();
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
at::Tensor ExchangedSum::part(const at::Tensor& values, std::int64_t rank) const {
  const std::int64_t begin = values.numel() * rank / ranks();
  const std::int64_t end = values.numel() * (rank + 1) / ranks();
  return values.narrow(0, begin, end - begin);
}

/// Memory for what is beside the tensors, if there is room: taken piece after piece until the end, and from
/// the beginning again when nobody needs it any more.
bool ExchangedSum::stage(Piece& piece) {
  std::int64_t numbers = 0;
  for (const at::Tensor& tensor : piece.of) numbers += tensor.numel();
  const at::Tensor& like = piece.of.front();
  const std::int64_t part = numbers * (me_ + 1) / ranks() - numbers * me_ / ranks();
  const auto rows = static_cast<std::int64_t>(copies_.size() - own_);
  const std::int64_t others = rows * part;
  const std::int64_t all = others + (piece.packed() ? numbers : 0);
  const std::int64_t bytes = all * static_cast<std::int64_t>(like.element_size());
  if (staging_pieces_ == 0) staged_ = 0;
  if (staged_ + bytes > staging_.numel()) return false;
  const at::Tensor memory = staging_.narrow(0, staged_, bytes).view(like.scalar_type());
  staged_ += (bytes + kReduceLine - 1) / kReduceLine * kReduceLine;
  ++staging_pieces_;
  piece.others = memory.narrow(0, 0, others).view({rows, part});
  piece.values = piece.packed() ? memory.narrow(0, others, numbers) : like;
  return true;
}

bool ExchangedSum::arrived(Piece& piece) {
  while (!piece.requests.empty() && transport_.test(*piece.requests.back())) piece.requests.pop_back();
  return piece.requests.empty();
}

template <class Visit>
void ExchangedSum::each_other(const Visit& visit) const {
  for (std::int64_t step = 1; step < ranks(); ++step) visit((me_ + step) % ranks());
}

/// Empty parts (fewer numbers than ranks) do not travel.
void ExchangedSum::receive(Piece& piece, std::int64_t from, std::int32_t phase, const at::Tensor& into) {
  if (into.numel() == 0) return;
  piece.requests.emplace_back(
      transport_.post_receive(ranks_[static_cast<std::size_t>(from)], tag_.of_phase(phase), into));
}

void ExchangedSum::send(Piece& piece, std::int64_t to, std::int32_t phase, const at::Tensor& tensor) {
  if (tensor.numel() == 0) return;
  piece.requests.emplace_back(
      transport_.post_send(ranks_[static_cast<std::size_t>(to)], tag_.of_phase(phase), tensor));
}

/// Of a rank's several copies the values come one after the other, in their order.
void ExchangedSum::scatter(Piece& piece) {
  if (piece.packed()) {
    std::int64_t at = 0;
    for (const at::Tensor& tensor : piece.of) {
      piece.values.narrow(0, at, tensor.numel()).copy_(tensor);
      at += tensor.numel();
    }
  }
  each_other([&](std::int64_t from) {
    std::int64_t row = 0;
    for (const std::int64_t rank : copies_) {
      if (rank == from) receive(piece, from, 0, piece.others.select(0, row));
      if (rank != me_) ++row;
    }
  });
  each_other([&](std::int64_t to) {
    send(piece, to, 0, part(piece.values, to));
    for (const at::Tensor& copy : piece.more) send(piece, to, 0, part(copy, to));
  });
}

void ExchangedSum::gather(Piece& piece) {
  each_other([&](std::int64_t from) { receive(piece, from, 1, part(piece.values, from)); });
  each_other([&](std::int64_t to) { send(piece, to, 1, part(piece.values, me_)); });
}

/// In the order of the copies.
void ExchangedSum::add_others(Piece& piece) {
  const at::Tensor own = part(piece.values, me_);
  std::vector<at::Tensor> values;  // of the part, by copy
  std::size_t first = copies_.size();
  std::size_t mine = 0;
  for (std::size_t copy = 0; copy < copies_.size(); ++copy) {
    if (copies_[copy] != me_) {
      values.push_back(piece.others[static_cast<std::int64_t>(copy - mine)]);
      continue;
    }
    if (mine == 0) first = copy;
    values.push_back(mine == 0 ? own : part(piece.more[mine - 1], me_));
    ++mine;
  }
  // Into the first, but for this rank's own second: a + b = b + a.
  if (first == 1) std::swap(values[0], values[1]);
  const at::Tensor sum = values[0];
  for (std::size_t copy = 1; copy < values.size(); ++copy) sum.add_(values[copy]);
  if (first > 1) own.copy_(sum);
  if (!piece.packed()) --staging_pieces_;
}

void ExchangedSum::complete(Piece& piece) {
  for (const at::Tensor& copy : piece.more) copy.copy_(piece.values);
  if (!piece.packed()) return;
  std::int64_t at = 0;
  for (const at::Tensor& tensor : piece.of) {
    tensor.copy_(piece.values.narrow(0, at, tensor.numel()));
    at += tensor.numel();
  }
  --staging_pieces_;
}

}  // namespace stagecraft
