#include "engine/transport/nccl/nccl_sum.h"

#include "base/error.h"
#include "schedules/rules/reductions.h"

#include <algorithm>
#include <utility>

namespace stagecraft::transport {
namespace {

/// Of a large tensor in a chain, whose ranks work on several at a time.
constexpr std::int64_t kPiece = 4 << 20;

NcclBackend::NumberType type_of(const at::Tensor& tensor) {
  if (tensor.scalar_type() == at::kFloat) return NcclBackend::NumberType::float32;
  if (tensor.scalar_type() == at::kByte) return NcclBackend::NumberType::uint8;
  STAGECRAFT_CHECK(tensor.scalar_type() == at::kDouble, "sums are of float32, float64 or bytes");
  return NcclBackend::NumberType::float64;
}

std::vector<NcclBackend::Numbers> numbers_of(const std::vector<at::Tensor>& tensors) {
  std::vector<NcclBackend::Numbers> numbers;
  for (const at::Tensor& tensor : tensors) {
    numbers.push_back({tensor.mutable_data_ptr(), static_cast<std::size_t>(tensor.numel()), type_of(tensor)});
  }
  return numbers;
}

}  // namespace

NcclSum::NcclSum(Launches& launches, Bells& bells, std::shared_ptr<DeviceStreams> streams,
                 std::shared_ptr<NcclBackend> nccl, SumLanes lanes, const std::vector<Rank>& members, Rank me,
                 const Tag& tag)
    : launches_(launches),
      bells_(bells),
      streams_(std::move(streams)),
      nccl_(std::move(nccl)),
      lanes_(std::move(lanes)),
      tag_(tag) {
  for (const Rank member : members) {
    if (member == me) continue;
    absent_.push_back(bells_.expect(member, tag_));
    bells_.ring(member, tag_);
  }
}

bool NcclSum::all_joined() {
  if (absent_.empty()) return true;
  std::erase_if(absent_, [this](Bell& bell) { return bells_.heard(bell); });
  if (!absent_.empty()) return false;
  for (Piece& piece : pieces_) go_on(piece);
  return true;
}

void NcclSum::add(const at::Tensor& tensor) {
  const auto bytes = static_cast<std::int64_t>(tensor.nbytes());
  if (bytes == 0) return;
  if (bytes > kReducePack.value) return add(std::vector{tensor});
  if (small_bytes_ + bytes > kReducePack.value) flush();
  small_.push_back(tensor.view({-1}));
  small_bytes_ += bytes;
}

void NcclSum::add(const std::vector<at::Tensor>& own) {
  STAGECRAFT_CHECK(own.size() == std::max<std::size_t>(1, lanes_.chain.size()),
                   "as many tensors as the rank has copies");
  const std::int64_t numbers = own.front().numel();
  const std::int64_t most =
      lanes_.chain.empty() ? numbers : kPiece / static_cast<std::int64_t>(own.front().element_size());
  for (std::int64_t begin = 0; begin < numbers; begin += most) {
    std::vector<Tensors> copies;
    for (const at::Tensor& tensor : own) {
      copies.push_back({tensor.view({-1}).narrow(0, begin, std::min(most, numbers - begin))});
    }
    launch(std::move(copies));
  }
}

void NcclSum::flush() {
  if (!small_.empty()) launch({std::exchange(small_, {})});
  small_bytes_ = 0;
}

void NcclSum::finish() {
  flush();
  bells_.await([this] { return all_joined(); }, [this] { return NcclOperation::name_sum(tag_); });
  if (pieces_.empty()) return;
  // Pieces go through the same lanes one after another, so the end of the last one is that of all.
  const auto await = [&] { launches_.await(pieces_.back().launched); };
  while (!pieces_.back().ends) {
    await();
    for (Piece& piece : pieces_) {
      piece.launched.reset();
      piece.begun = false;
      go_on(piece);
    }
  }
  await();
  for (const Piece& piece : pieces_) {
    piece.launched->tensors.clear();
    for (std::size_t copy = 0; copy + 1 < piece.copies.size(); ++copy) {
      for (std::size_t i = 0; i < piece.copies[copy].size(); ++i) {
        piece.copies[copy][i].copy_(piece.copies.back()[i]);
      }
    }
  }
  if (marks_ == HeldEvent::Kind::timed) spans_ = timed_spans();
  pieces_.clear();
}

ReplicaSum::Spans NcclSum::timed_spans() const {
  struct Moved {
    std::shared_ptr<HeldEvent> leaves;
    std::shared_ptr<NcclOperation> last;
    Bytes bytes;
  };
  std::vector<Moved> all;
  for (const Piece& piece : pieces_) {
    Bytes bytes;
    for (const at::Tensor& tensor : piece.copies.back())
      bytes += Bytes{static_cast<std::int64_t>(tensor.nbytes())};
    all.push_back({piece.leaves, piece.launched, bytes});
  }
  const auto finished = std::make_shared<HeldEvent>(streams_, HeldEvent::Kind::timed);
  finished->record(DeviceStreams::Stream::compute);
  return [all = std::move(all), finished] {
    std::vector<Span> spans;
    for (const Moved& moved : all) {
      spans.push_back({Seconds{-finished->since(*moved.leaves).value},
                       Seconds{-finished->since(moved.last->end).value}, moved.bytes});
    }
    return spans;
  };
}

void NcclSum::launch(std::vector<Tensors> copies) {
  launches_.listen();
  Piece& piece = pieces_.emplace_back(Piece{.copies = std::move(copies)});
  if (all_joined()) {
    if (!piece.begun) go_on(piece);
    return;
  }
  // It is launched behind what is computed by now, unless copies of this rank are to be added first.
  const bool adds = !lanes_.chain.empty() && !lanes_.chain.front().previous && !lanes_.chain.front().next;
  if (!adds) piece.launched = marked(piece);
}

std::shared_ptr<NcclOperation> NcclSum::marked(const Piece& piece) {
  Tensors all;
  for (const Tensors& copy : piece.copies) all.insert(all.end(), copy.begin(), copy.end());
  auto operation = std::make_shared<NcclOperation>(streams_, NcclOperation::Kind::sum, tag_, Rank{},
                                                   std::move(all), marks_);
  operation->end.record(DeviceStreams::Stream::compute);
  return operation;
}

void NcclSum::go_on(Piece& piece) {
  const auto then = [&](const Lane& lane, const Tensors& tensors, const auto& call) {
    if (!piece.launched) piece.launched = marked(piece);
    if (!piece.begun) launches_.add(piece.launched);
    piece.begun = true;
    piece.launched->end.before(lane.stream);
    if (marks_ == HeldEvent::Kind::timed && !piece.leaves) {
      piece.leaves = std::make_shared<HeldEvent>(streams_, marks_);
      piece.leaves->record(lane.stream);
    }
    call(lane, numbers_of(tensors));
    piece.launched->end.record(lane.stream);
  };
  // Of two neighbours in a chain the one behind has the sum.
  const auto reduce = [&](const Lane& lane, const std::vector<NcclBackend::Numbers>& numbers) {
    nccl_->reduce(lane.group, lane.stream, /*root=*/1, numbers);
  };
  for (; piece.at < lanes_.chain.size(); ++piece.at) {
    const ChainPlace& place = lanes_.chain[piece.at];
    const Tensors& here = piece.copies[piece.at];
    if (piece.at > 0 && !place.previous) {  // behind another copy of this rank
      if (piece.begun) return;
      for (std::size_t i = 0; i < here.size(); ++i) here[i].add_(piece.copies[piece.at - 1][i]);
    }
    if (place.previous) then(*place.previous, here, reduce);
    if (place.next) then(*place.next, here, reduce);
  }
  then(lanes_.all, piece.copies.back(), [&](const Lane& all, const auto& numbers) {
    if (lanes_.chain.empty()) return nccl_->all_reduce(all.group, all.stream, numbers);
    nccl_->broadcast(all.group, all.stream, lanes_.last, numbers);
  });
  piece.ends = true;
}

}  // namespace stagecraft::transport
