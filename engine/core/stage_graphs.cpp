#include "engine/core/stage_graphs.h"

#include "base/error.h"

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <bit>
#include <exception>
#include <utility>

namespace stagecraft {
namespace {

/// What changes for ever, as sizes may, must not fill the device. What comes later runs as it is: a
/// recording that goes would wait for the device, and a wait in a step costs at best the step's overlap.
constexpr std::size_t kMostPasses = 1024;
constexpr std::size_t kMostSeen = 4096;

/// The same values, whose memory on the device it does not keep. (What lies on the host is a number that
/// every time is the same.)
at::Tensor not_owned(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_cpu() || tensor.is_meta()) return tensor;
  return at::for_blob(tensor.data_ptr(), tensor.sizes())
      .strides(tensor.strides())
      .options(tensor.options())
      .target_device(tensor.device())
      .make_tensor();
}

Tensors not_owned(const Tensors& tensors) {
  Tensors others;
  for (const at::Tensor& tensor : tensors) others.push_back(not_owned(tensor));
  return others;
}

InFlight not_owned(InFlight work) {
  for_each_tensor(work, [](at::Tensor& tensor) { tensor = not_owned(tensor); });
  return work;
}

GraphKey place_of(const InFlight& work) {
  GraphKey place;
  for_each_tensor(work, [&](const at::Tensor& tensor) { place.add(tensor); });
  return place;
}

using Written = std::vector<std::vector<bool>>;

Written written(const StageGraphs::Accumulators* sums) {
  Written flags;
  if (sums == nullptr) return flags;
  for (const GradientAccumulator& sum : *sums) flags.push_back(sum.written());
  return flags;
}

void set_written(StageGraphs::Accumulators* sums, const Written& flags) {
  for (std::size_t i = 0; i < flags.size(); ++i) (*sums)[i].set_written(flags[i]);
}

/// Why nothing may be recorded, or "". Memory that LibTorch fills as soon as it is made, a recording fills each time:
/// what was copied there to be read by it is gone.
std::string filled_memory() {
  const at::Context& context = at::globalContext();
  return context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory()
             ? "LibTorch fills new memory (torch.utils.deterministic.fill_uninitialized_memory)"
             : "";
}

}  // namespace

GraphKey& GraphKey::add(double number) { return add(std::bit_cast<std::uint64_t>(number)); }

GraphKey& GraphKey::add(const at::Tensor& tensor) {
  return add(tensor.defined() ? std::uint64_t{reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr())}
                              : std::uint64_t{0});
}

struct StageGraphs::Recorded {
  std::unique_ptr<DeviceGraph> graph{};
  GraphKey finds{};   ///< where what the micro-batch had kept lay
  Tensors inputs{};   ///< where the part reads them
  Tensors outputs{};  ///< where it left them
  InFlight leaves{};  ///< kept by the micro-batch afterwards
  Written written{};  ///< of the sums, afterwards
};

struct StageGraphs::Pass {
  Slot& slot;
  std::map<GraphKey, Recorded> parts{};
  /// Its forward was recorded for the micro-batch that is under way, so that the pool knows of what that
  /// keeps.
  bool recording = false;
};

struct StageGraphs::Slot {
  DeviceGraphs::Pool pool;
  at::Tensor name;       ///< of the micro-batch that has the slot
  at::Tensor weights{};  ///< of its loss; undefined: none were ever given
  std::optional<Weights> written{};
  bool busy = false;
  std::map<GraphKey, Pass> passes{};
};

StageGraphs::StageGraphs(std::shared_ptr<DeviceGraphs> graphs, at::Device device)
    : graphs_(std::move(graphs)), device_(device), backwards_(graphs_->make_pool()) {}

StageGraphs::~StageGraphs() = default;

const at::Tensor& StageGraphs::name_of(const Pass& pass) { return pass.slot.name; }

const at::Tensor& StageGraphs::weights_of(const Pass& pass) { return pass.slot.weights; }

StageGraphs::Pass* StageGraphs::begin(const GraphKey& key, std::int64_t name,
                                      const std::optional<Weights>& weights) {
  if (!counts_.refusal.empty()) return nullptr;
  if (seen_.size() == kMostSeen) seen_.clear();
  if (seen_.insert(key).second) return nullptr;
  Slot* const slot = idle_slot(key);
  if (slot == nullptr) {
    ++counts_.crowded;
    return nullptr;
  }
  const auto [entry, fresh] = slot->passes.try_emplace(key, Pass{.slot = *slot});
  if (fresh) ++passes_;
  slot->busy = true;
  slot->name.fill_(name);
  if (weights && weights != slot->written) {
    if (!slot->weights.defined()) slot->weights = at::empty({2}, slot->name.options().dtype(at::kDouble));
    slot->weights.select(0, 0).fill_((*weights)[0]);
    slot->weights.select(0, 1).fill_((*weights)[1]);
    slot->written = weights;
  }
  return &entry->second;
}

void StageGraphs::end(Pass& pass) { pass.slot.busy = false; }

StageGraphs::Slot* StageGraphs::idle_slot(const GraphKey& key) {
  Slot* idle = nullptr;
  for (const auto& slot : slots_) {
    if (slot->busy) continue;
    if (slot->passes.contains(key)) return slot.get();
    if (idle == nullptr) idle = slot.get();
  }
  if (passes_ >= kMostPasses) return nullptr;
  if (idle != nullptr) return idle;
  slots_.push_back(std::make_unique<Slot>(Slot{
      .pool = graphs_->make_pool(), .name = at::empty({}, at::TensorOptions(device_).dtype(at::kLong))}));
  return slots_.back().get();
}

StageGraphs::Recorded* StageGraphs::record(Pass& pass, const GraphKey& key, DeviceGraphs::Pool pool,
                                           const Tensors& inputs, InFlight& work, Accumulators* sums,
                                           const Part& part) {
  counts_.refusal = filled_memory();
  if (!counts_.refusal.empty()) return nullptr;
  Recorded recorded{.finds = place_of(work)};
  const Written before = written(sums);
  InFlight after = work;
  try {
    recorded.graph = graphs_->record(pool, [&] {
      Tensors own;
      for (const at::Tensor& input : inputs) {
        own.push_back(input.defined() ? at::empty_like(input, at::MemoryFormat::Contiguous) : input);
      }
      recorded.inputs = not_owned(own);
      recorded.outputs = not_owned(part(own, after));
    });
  } catch (const std::exception& error) {
    counts_.refusal = error.what();
    if (sums != nullptr) set_written(sums, before);
    return nullptr;
  }
  recorded.written = written(sums);
  recorded.leaves = not_owned(after);
  work = std::move(after);
  ++counts_.recorded;
  return &pass.parts.emplace(key, std::move(recorded)).first->second;
}

Tensors StageGraphs::run(Pass& pass, PartKind kind, Tensors inputs, InFlight& work, Accumulators* sums,
                         const Part& part) {
  GraphKey key;
  key.add(static_cast<std::uint64_t>(kind));
  if (sums != nullptr) {
    for (const GradientAccumulator& sum : *sums) {
      for (const at::Tensor& memory : sum.memory()) key.add(memory);
      for (const bool flag : sum.written()) key.add(std::uint64_t{flag});
    }
  }
  const bool forward = kind == PartKind::forward;
  const bool leaves_some = forward || kind == PartKind::recompute || kind == PartKind::backward_input;
  Recorded* recorded = nullptr;
  bool now = false;
  if (const auto found = pass.parts.find(key); found != pass.parts.end()) {
    if (found->second.finds == place_of(work)) recorded = &found->second;
  } else if (counts_.refusal.empty() && (forward || !leaves_some || pass.recording)) {
    recorded = record(pass, key, leaves_some ? pass.slot.pool : backwards_, inputs, work, sums, part);
    now = recorded != nullptr;
  }
  if (forward) pass.recording = now;
  if (recorded == nullptr) {
    ++counts_.plain;
    return part(std::move(inputs), work);
  }
  ++counts_.repeated;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].defined()) recorded->inputs[i].copy_(inputs[i], /*non_blocking=*/true);
  }
  recorded->graph->launch();
  if (!now) {
    work = recorded->leaves;
    if (sums != nullptr) set_written(sums, recorded->written);
  }
  // The next micro-batch's overwrites them, wherever these are by then.
  Tensors outputs;
  for (const at::Tensor& output : recorded->outputs) {
    outputs.push_back(output.defined() ? output.clone() : output);
  }
  return outputs;
}

}  // namespace stagecraft
