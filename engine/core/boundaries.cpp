#include "engine/core/boundaries.h"

#include "base/error.h"
#include "schedules/program/placement.h"

#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace stagecraft {
namespace {

/// The values at those places, packed. One of several is copied: what is packed has memory of its own, whether
/// other values go another way or not.
at::Tensor message(const Bundle& bundle, const std::vector<std::size_t>& places) {
  if (places.size() == bundle.size()) return packed(bundle);
  Bundle chosen;
  for (const std::size_t place : places) chosen.push_back(bundle.at(place));
  return chosen.size() == 1 ? chosen.front().clone() : packed(chosen);
}

/// How many of the bundle's first `count` values have gradients.
std::size_t gradients_up_to(const BoundarySpec& bundle, std::size_t count) {
  return static_cast<std::size_t>(std::count_if(bundle.values.begin(),
                                                bundle.values.begin() + static_cast<std::ptrdiff_t>(count),
                                                [](const ValueSpec& value) { return value.has_gradient(); }));
}

void put_in_place(Bundle values, const std::vector<std::size_t>& places, Bundle& bundle) {
  for (std::size_t i = 0; i < places.size(); ++i) bundle.at(places[i]) = std::move(values.at(i));
}

}  // namespace

Boundaries::Boundaries(const StagedModel& model, const Placement& placement, std::int64_t micro_batch_size,
                       at::Device device, Transport& transport, bool poison_released)
    : placement_(placement),
      device_(device),
      transport_(transport),
      poison_(poison_released),
      model_(model.model),
      stage_layers_(model.stage_layers),
      full_{micro_batch_size},
      loss_numbers_(static_cast<std::int64_t>(loss_numbers(model.loss))) {}

void Boundaries::find_links(const std::vector<Skip>& skips) {
  if (!before_.empty() && skips == skips_) return;  // found before
  const std::vector<BoundarySpec> tensors = boundaries(model_, full_);
  const std::vector<StageLink> found = links_of(model_, stage_layers_, tensors, !skips.empty());
  STAGECRAFT_CHECK(skips_of(found) == skips, "the program's skips are not those of the model's layers");
  skips_ = skips;
  links_.clear();
  specs_.clear();
  before_.clear();
  gradients_.clear();
  for (const auto& [first, last] : stage_layers_) {
    const BoundarySpec& before = before_.emplace_back(tensors.at(static_cast<std::size_t>(first)));
    gradients_.push_back(gradients_up_to(before, before.values.size()));
  }
  const auto gradients = [](const BoundarySpec& bundle, const std::vector<std::size_t>& places) {
    std::vector<std::size_t> found_places;
    for (const std::size_t place : places) {
      if (bundle.values[place].has_gradient()) found_places.push_back(gradients_up_to(bundle, place));
    }
    return found_places;
  };
  for (const StageLink& link : found) {
    links_.push_back({link, gradients(before_[link.from.index() + 1], link.sent),
                      gradients(before_[link.to.index()], link.received)});
  }
}

const BoundarySpec& Boundaries::spec(Payload payload, StageId from, StageId to, const BatchSize& size) {
  const auto [known, fresh] = specs_.try_emplace(size);
  if (fresh) {
    const std::vector<BoundarySpec> tensors = boundaries(model_, size);
    for (const Link& link : links_) {
      const int first = stage_layers_[link.ends.to.index()].first;
      LinkSpecs& specs = known->second.emplace_back();
      specs.activation = spec_of(link.ends, tensors.at(static_cast<std::size_t>(first)));
      specs.gradient = specs.activation.gradients();
    }
  }
  const bool is_activation = payload == Payload::activation;
  if (!is_activation) std::swap(from, to);
  std::size_t link = from.index();  // those between neighbours come first
  while (link < links_.size() && (links_[link].ends.from != from || links_[link].ends.to != to)) ++link;
  STAGECRAFT_CHECK(link < links_.size(),
                   fmt::format("nothing goes from stage {} to stage {}", from.value, to.value));
  const LinkSpecs& specs = known->second[link];
  return is_activation ? specs.activation : specs.gradient;
}

at::Tensor Boundaries::allocate(const SlotInfo& info) {
  if (info.payload == Payload::loss)
    return at::empty({loss_numbers_}, at::TensorOptions(device_).dtype(at::kDouble));
  const BoundarySpec& full = spec(info.payload, info.from, info.to, full_);
  return at::empty(full.shape, at::TensorOptions(device_).dtype(full.dtype));
}

void Boundaries::begin(const RankProgramPtr& program) {
  check_empty();
  if (program == program_) {  // as most steps: everything lies where it lay
    for (SlotState& slot : slots_) slot.used = false;
    return;
  }
  program_ = program;
  find_links(program->header.skips);
  slots_.clear();
  std::map<SlotKind, std::size_t> used;
  for (const SlotInfo& info : program->slots) {
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

void Boundaries::post_receive(const Tag& tag, Slot slot, const BatchSize& size) {
  SlotState& state = slots_.at(slot.index());
  STAGECRAFT_CHECK(!state.used, fmt::format("{} is posted into slot {}, which holds {}", describe_tag(tag),
                                            slot.value, describe_tag(state.holds)));
  state.holds = tag;
  state.used = true;
  at::Tensor into = state.memory;
  if (!tag.is_loss() && size != full_) {
    const BoundarySpec& its = spec(tag, size);
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

void Boundaries::put_outputs(StageId stage, MicroBatch micro_batch, const Bundle& outputs) {
  for (const Link& link : links_) {
    const auto& [from, to, sent, received] = link.ends;
    if (from == stage) put(Tag::activation(from, to, micro_batch), message(outputs, sent));
  }
}

Bundle Boundaries::take_inputs(StageId stage, MicroBatch micro_batch, const BatchSize& size) {
  Bundle inputs(before_[stage.index()].values.size());
  for (const Link& link : links_) {
    if (link.ends.to != stage) continue;
    const Tag tag = Tag::activation(link.ends.from, stage, micro_batch);
    put_in_place(unpacked(spec(tag, size), take(tag)), link.ends.received, inputs);
  }
  return inputs;
}

void Boundaries::put_input_gradients(StageId stage, MicroBatch micro_batch, const Bundle& gradients) {
  for (const Link& link : links_) {
    if (link.ends.to != stage || !program_->header.has_backward(link.ends.from)) continue;
    put(Tag::gradient(stage, link.ends.from, micro_batch), message(gradients, link.received_gradients));
  }
}

Bundle Boundaries::take_output_gradients(StageId stage, MicroBatch micro_batch, const BatchSize& size) {
  Bundle gradients(gradients_[stage.index() + 1]);
  for (const Link& link : links_) {
    if (link.ends.from != stage) continue;
    const Tag tag = Tag::gradient(link.ends.to, stage, micro_batch);
    put_in_place(unpacked(spec(tag, size), take(tag)), link.sent_gradients, gradients);
  }
  return gradients;
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
