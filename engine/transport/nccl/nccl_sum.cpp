#include "stagecraft/engine/transport/nccl/nccl_sum.h"

#include "stagecraft/base/error.h"
#include "stagecraft/schedules/rules/reductions.h"

#include <algorithm>
#include <utility>

namespace stagecraft::transport {
namespace {

/// Of a large tensor in a chain, whose replicas work on several at a time.
constexpr std::int64_t kPiece = 4 << 20;

NcclBackend::NumberType type_of(const at::Tensor& tensor) {
  if (tensor.scalar_type() == at::kFloat) return NcclBackend::NumberType::float32;
  if (tensor.scalar_type() == at::kByte) return NcclBackend::NumberType::uint8;
  STAGECRAFT_CHECK(tensor.scalar_type() == at::kDouble, "sums are of float32, float64 or bytes");
  return NcclBackend::NumberType::float64;
}

NcclBackend::Numbers numbers_of(const at::Tensor& tensor) {
  return {tensor.mutable_data_ptr(), static_cast<std::size_t>(tensor.numel()), type_of(tensor)};
}

}  // namespace

NcclSum::NcclSum(Launches& launches, std::shared_ptr<DeviceStreams> streams,
                 std::shared_ptr<NcclBackend> nccl, const SumLanes& lanes, const Tag& tag)
    : launches_(launches), streams_(std::move(streams)), nccl_(std::move(nccl)), lanes_(lanes), tag_(tag) {}

void NcclSum::add(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.view({-1});
  const auto bytes = static_cast<std::int64_t>(flat.nbytes());
  if (bytes == 0) return;
  if (bytes > kReducePack.value) {
    const bool chain = lanes_.previous || lanes_.next;
    const std::int64_t most = chain ? kPiece / static_cast<std::int64_t>(flat.element_size()) : flat.numel();
    for (std::int64_t begin = 0; begin < flat.numel(); begin += most) {
      launch({flat.narrow(0, begin, std::min(most, flat.numel() - begin))});
    }
    return;
  }
  if (small_bytes_ + bytes > kReducePack.value) flush();
  small_.push_back(flat);
  small_bytes_ += bytes;
}

void NcclSum::flush() {
  if (!small_.empty()) launch(std::exchange(small_, {}));
  small_bytes_ = 0;
}

void NcclSum::finish() {
  flush();
  if (launched_.empty()) return;
  // The lane of all replicas is the last one of every launch, so its end is that of all before.
  launches_.await(launched_.back());
  for (const auto& launched : launched_) launched->tensors.clear();
  launched_.clear();
}

void NcclSum::launch(std::vector<at::Tensor> tensors) {
  launches_.listen();
  std::vector<NcclBackend::Numbers> numbers;
  for (const at::Tensor& tensor : tensors) numbers.push_back(numbers_of(tensor));
  const auto launched =
      std::make_shared<NcclOperation>(streams_, NcclOperation::Kind::sum, tag_, Rank{}, std::move(tensors));
  const DeviceStreams::Event end = launched->end;
  streams_->record(end, DeviceStreams::Stream::compute);
  const auto then = [&](const Lane& lane, const auto& call) {
    streams_->wait(lane.stream, end);
    call(lane);
    streams_->record(end, lane.stream);
  };
  // Of two neighbours in a chain the one behind has the sum.
  const auto reduce = [&](const Lane& lane) { nccl_->reduce(lane.group, lane.stream, /*root=*/1, numbers); };
  if (lanes_.previous) then(*lanes_.previous, reduce);
  if (lanes_.next) then(*lanes_.next, reduce);
  if (lanes_.previous || lanes_.next) {
    then(lanes_.all, [&](const Lane& all) {
      nccl_->broadcast(all.group, all.stream, /*root=*/lanes_.replicas - 1, numbers);
    });
  } else {
    then(lanes_.all, [&](const Lane& all) { nccl_->all_reduce(all.group, all.stream, numbers); });
  }
  launches_.add(launched);
  launched_.push_back(launched);
}

}  // namespace stagecraft::transport
