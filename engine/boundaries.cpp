#include "stagecraft/engine/boundaries.h"

#include "stagecraft/base/error.h"
#include "stagecraft/schedules/costs/traffic.h"
#include "stagecraft/schedules/program/placement.h"

#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>
#include <fmt/format.h>

#include <limits>

namespace stagecraft {

Boundaries::Boundaries(const Model& model, const std::vector<std::pair<int, int>>& stage_layers,
                       const Placement& placement, std::int64_t micro_batch_size, at::Device device,
                       Transport& transport, bool poison_released)
    : placement_(placement),
      device_(device),
      transport_(transport),
      poison_(poison_released),
      model_(model),
      micro_batch_size_(micro_batch_size) {
  for (const auto& [first, last] : stage_layers) first_layers_.push_back(first);
}

const BoundarySpec& Boundaries::spec(Payload payload, StageId from, StageId to, std::int64_t samples) {
  const auto [known, fresh] = specs_.try_emplace(samples);
  LayerSpecs& specs = known->second;
  if (fresh) {
    specs.activations = boundaries(model_, samples);
    for (std::size_t i = 0; i < specs.activations.size(); ++i) {
      specs.gradients.push_back(i == 0 ? BoundarySpec() : specs.activations[i].gradients());
    }
  }
  // An activation is the input of the stage it goes to, a gradient that of the stage it comes from.
  const bool is_activation = payload == Payload::activation;
  const StageId stage = is_activation ? to : from;
  return (is_activation ? specs.activations : specs.gradients)
      .at(static_cast<std::size_t>(first_layers_[stage.index()]));
}

at::Tensor Boundaries::allocate(const SlotInfo& info) {
  if (info.payload == Payload::loss) return at::empty({2}, at::TensorOptions(device_).dtype(at::kDouble));
  const BoundarySpec& full = spec(info.payload, info.from, info.to, micro_batch_size_);
  return at::empty(full.shape, at::TensorOptions(device_).dtype(full.dtype));
}

void Boundaries::begin(const std::vector<SlotInfo>& slots) {
  check_empty();
  slots_.clear();
  std::map<SlotKind, std::size_t> used;
  for (const SlotInfo& info : slots) {
    const SlotKind kind{info.payload, info.from, info.to, info.index};
    Tensors& memory = memory_[kind];
    const std::size_t number = used[kind]++;
    if (number == memory.size()) memory.push_back(allocate(info));
    slots_.push_back({memory[number], {}, false});
  }
  // What this segment has no slot for goes, so that memory is what its own proof says.
  for (auto& [kind, memory] : memory_) memory.resize(used[kind]);
  std::erase_if(memory_, [](const auto& entry) { return entry.second.empty(); });
}

void Boundaries::post_receive(const Tag& tag, Slot slot, std::int64_t samples) {
  SlotState& state = slots_.at(slot.index());
  STAGECRAFT_CHECK(!state.used, fmt::format("{} is posted into slot {}, which holds {}", describe_tag(tag),
                                            slot.value, describe_tag(state.holds)));
  state.holds = tag;
  state.used = true;
  at::Tensor into = state.memory;
  if (!tag.is_loss() && samples != micro_batch_size_) {
    const BoundarySpec& its = spec(tag.payload, tag.from, tag.to, samples);
    into = into.view({-1}).narrow(0, 0, c10::multiply_integers(its.shape)).view(its.shape);
  }
  receives_[tag] = {into, transport_.post_receive(sender_of(placement_, tag), tag, into)};
}

void Boundaries::finish(std::unordered_map<Tag, Transfer>& transfers, const Tag& tag) {
  const auto found = transfers.find(tag);
  STAGECRAFT_CHECK(found != transfers.end(), describe_tag(tag) + " is waited for but not under way");
  transport_.wait(*found->second.request);
}

void Boundaries::wait_receive(const Tag& tag) {
  finish(receives_, tag);
  ready_[tag] = {std::move(receives_.at(tag).tensor), true};
  receives_.erase(tag);
}

void Boundaries::start_send(const Tag& tag) {
  const auto found = ready_.find(tag);
  STAGECRAFT_CHECK(found != ready_.end(), describe_tag(tag) + " is sent but not there");
  const at::Tensor tensor = std::move(found->second.first);
  ready_.erase(found);
  sends_[tag] = {tensor, transport_.start_send(receiver_of(placement_, tag), tag, tensor)};
}

void Boundaries::wait_send(const Tag& tag) {
  finish(sends_, tag);
  sends_.erase(tag);
}

void Boundaries::release(Slot slot) {
  SlotState& state = slots_.at(slot.index());
  ready_.erase(state.holds);
  state.used = false;
  if (poison_ && state.memory.is_floating_point()) {
    state.memory.fill_(std::numeric_limits<double>::quiet_NaN());
  }
}

void Boundaries::put(const Tag& tag, at::Tensor tensor) { ready_[tag] = {std::move(tensor), false}; }

Bundle Boundaries::take_bundle(const Tag& tag, std::int64_t samples) {
  return unpacked(spec(tag.payload, tag.from, tag.to, samples), take(tag));
}

at::Tensor Boundaries::take(const Tag& tag) {
  const auto found = ready_.find(tag);
  STAGECRAFT_CHECK(found != ready_.end(), describe_tag(tag) + " is read but not there");
  auto& [tensor, in_slot] = found->second;
  if (in_slot) return tensor;
  at::Tensor taken = std::move(tensor);
  ready_.erase(found);
  return taken;
}

void Boundaries::check_empty() const {
  STAGECRAFT_CHECK(receives_.empty() && sends_.empty() && ready_.empty(),
                   fmt::format("a segment left {} receives, {} sends and {} tensors behind", receives_.size(),
                               sends_.size(), ready_.size()));
}

}  // namespace stagecraft
