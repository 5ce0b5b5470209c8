#include "profiler/layer_memory.h"

#include "profiler/memory_meter.h"

#include <algorithm>
#include <map>
#include <optional>

namespace stagecraft {

namespace {

/// A storage's identity; valid while something holds the storage.
using StorageKey = const c10::StorageImpl*;

StorageKey key_of(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

Bytes storage_bytes(const at::Tensor& tensor) {
  return Bytes{tensor.defined() ? static_cast<std::int64_t>(tensor.storage().nbytes()) : 0};
}

Bytes sum_of(const Tensors& tensors) {
  Bytes sum;
  for (const at::Tensor& tensor : tensors) sum += Bytes{static_cast<std::int64_t>(tensor.nbytes())};
  return sum;
}

/// The distinct storages of some tensors on a device; single numbers that the host keeps for it take no memory
/// there.
class Storages {
 public:
  explicit Storages(at::Device device) : device_(device) {}
  void add(const Tensors& tensors) {
    for (const at::Tensor& tensor : tensors) {
      if (tensor.defined() && tensor.device() == device_)
        bytes_.emplace(key_of(tensor), storage_bytes(tensor));
    }
  }
  /// Takes one out; true if it was there.
  bool take(StorageKey key) { return bytes_.erase(key) > 0; }
  void take_all(const Tensors& tensors) {
    for (const at::Tensor& tensor : tensors) take(key_of(tensor));
  }
  [[nodiscard]] Bytes bytes() const {
    Bytes sum;
    for (const auto& [key, bytes] : bytes_) sum += bytes;
    return sum;
  }

 private:
  at::Device device_;
  std::map<StorageKey, Bytes> bytes_;
};

/// A storage that may be gone meanwhile; while this is kept its address names no other.
using StorageWatch = std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>>;

/// Null where it is gone.
StorageKey key_of(const StorageWatch& watch) { return watch ? watch->lock().get() : nullptr; }

using HeldStorages = std::vector<c10::intrusive_ptr<c10::StorageImpl>>;

/// Those that are not gone.
void hold(HeldStorages& held, const std::vector<StorageWatch>& watches) {
  for (const StorageWatch& watch : watches) {
    if (watch) held.push_back(watch->lock());
  }
}

/// What is learned of a row in forward and needed in backward.
struct Row {
  std::vector<StorageWatch> inputs, outputs;  ///< where they are kept
  std::vector<Bytes> input_bytes;
  std::vector<bool> inputs_with_gradient;
};

std::vector<bool> with_gradient(const Bundle& bundle) {
  std::vector<bool> found;
  for (const at::Tensor& value : bundle) found.push_back(value.is_floating_point());
  return found;
}

/// Where a bundle's tensors are, or -1.
int position_of(StorageKey key, const Bundle& bundle) {
  for (std::size_t i = 0; i < bundle.size(); ++i) {
    if (key != nullptr && key_of(bundle[i]) == key) return static_cast<int>(i);
  }
  return -1;
}

std::optional<int> if_any(int position) { return position < 0 ? std::nullopt : std::optional(position); }

/// Of a layer that reads one tensor and makes one, or of the loss, as profiles of chains say it.
void as_chain(LayerProfile& profile) {
  if (profile.inputs.size() > 1 || profile.outputs.size() > 1) return;
  const InputProfile input = profile.inputs.front();
  const OutputProfile output = profile.outputs.empty() ? OutputProfile{} : profile.outputs.front();
  profile.keeps_input = input.kept;
  profile.keeps_output = output.kept;
  profile.output_is_input = output.same_as.has_value();
  if (profile.weight_half_keeps_input) {
    profile.weight_half_keeps_input = input.kept_for_weight;
    profile.weight_half_keeps_output = output.kept_for_weight;
    profile.weight_half_keeps_gradient = output.gradient_kept;
  }
  profile.inputs.clear();
  profile.outputs.clear();
}

ChainInput on_device(ChainInput data, at::Device device) {
  data.inputs = data.inputs.to(device);
  if (data.targets.defined()) data.targets = data.targets.to(device);
  for (auto& [name, field] : data.fields) field = field.to(device);
  return data;
}

class MemoryPass {
 public:
  MemoryPass(Chain& chain, const ChainInput& data)
      : chain_(chain),
        data_(on_device(data, chain.device())),
        meter_(chain.device()),
        profiles_(static_cast<std::size_t>(chain.rows())),
        rows_(profiles_.size()) {}

  std::vector<LayerProfile> run() {
    Bundle bundle = chain_.begin(data_, work_);
    for (int row = 0; row < chain_.rows(); ++row) {
      profiles_[static_cast<std::size_t>(row)].name = chain_.name(row);
      if (chain_.runs(row)) bundle = forward(row, bundle);
    }
    for (int row = chain_.rows() - 1; row >= 0; --row) {
      if (!chain_.runs(row)) continue;
      if (!chain_.frozen(row)) bundle = backward(row, bundle);
      as_chain(profiles_[static_cast<std::size_t>(row)]);
    }
    return std::move(profiles_);
  }

 private:
  Bundle forward(int row, const Bundle& inputs) {
    LayerProfile& profile = profiles_[static_cast<std::size_t>(row)];
    profile.parameters = sum_of(chain_.weights(row));
    if (chain_.mixed()) profile.compute_copy = sum_of(chain_.weights_read(row));
    profile.buffers = sum_of(chain_.buffers(row));
    profile.fields = chain_.fields(row);
    if (chain_.frozen(row)) profile.frozen = true;

    const Bytes before = meter_.live();
    meter_.reset_peak();
    Bundle outputs = chain_.forward(row, inputs, work_, 0);
    const Bytes peak = meter_.peak() - before;

    if (!outputs.empty()) profile.output = Bytes{BoundarySpec(outputs).bytes()};
    const Kept& kept = work_.kept[static_cast<std::size_t>(row)];
    Storages storages(chain_.device());
    storages.add(kept.for_input);
    storages.add(kept.for_weight);
    storages.take_all(chain_.weights_read(row));
    storages.take_all(chain_.buffers(row));
    // Loaded, not made: the proof counts them apart.
    if (data_.targets.defined()) storages.take(key_of(data_.targets));
    for (const auto& [name, field] : data_.fields) storages.take(key_of(field));
    const Bytes own = note_kept(row, inputs, outputs, storages);
    profile.kept_for_input = storages.bytes();
    profile.forward_transient = std::max(Bytes{}, peak - (profile.kept_for_input + own));
    return outputs;
  }

  /// Takes inputs and outputs out of what the row's forward keeps. The bytes of outputs with memory of their
  /// own.
  Bytes note_kept(int row, const Bundle& inputs, const Bundle& outputs, Storages& storages) {
    LayerProfile& profile = profiles_[static_cast<std::size_t>(row)];
    Row& seen = rows_[static_cast<std::size_t>(row)];
    const auto watch = [](std::vector<StorageWatch>& watches, const at::Tensor& tensor, bool kept) {
      watches.emplace_back();
      if (kept) watches.back().emplace(tensor.storage().getWeakStorageImpl());
    };
    for (const at::Tensor& input : inputs) {
      InputProfile found;
      found.kept = storages.take(key_of(input));
      watch(seen.inputs, input, found.kept);
      seen.input_bytes.push_back(Bytes{static_cast<std::int64_t>(input.nbytes())});
      profile.inputs.push_back(found);
    }
    seen.inputs_with_gradient = with_gradient(inputs);
    Storages own(chain_.device());
    for (const at::Tensor& output : outputs) {
      OutputProfile found;
      found.bytes = Bytes{static_cast<std::int64_t>(output.nbytes())};
      found.has_gradient = output.is_floating_point();
      found.same_as = if_any(position_of(key_of(output), inputs));
      found.kept = found.same_as ? profile.inputs[static_cast<std::size_t>(*found.same_as)].kept
                                 : storages.take(key_of(output));
      if (!found.same_as) own.add({output});
      watch(seen.outputs, output, found.kept);
      profile.outputs.push_back(found);
    }
    return own.bytes();
  }

  Bundle backward(int row, const Bundle& gradients) {
    LayerProfile& profile = profiles_[static_cast<std::size_t>(row)];
    // What the row keeps of its inputs and outputs may lie in a stage's slots, or be kept by its neighbours:
    // then it stays while the row's backward runs, though a replayed graph reads it for the last time.
    HeldStorages held;
    hold(held, rows_[static_cast<std::size_t>(row)].inputs);
    hold(held, rows_[static_cast<std::size_t>(row)].outputs);
    const Bytes before = meter_.live();
    meter_.reset_peak();
    Bundle results = chain_.backward_input(row, gradients, work_);
    const Bytes stays = before + note_gradients(row, results, gradients);
    Bytes peak = meter_.peak();
    profile.backward_input_transient = peak - stays;
    if (chain_.has_weights(row)) {
      note_kept_for_weight(row, gradients);
      const Bytes between = meter_.live();
      meter_.reset_peak();
      chain_.backward_weight(row, work_);
      profile.backward_weight_transient = meter_.peak() - between;
      peak = std::max(peak, meter_.peak());
    }
    work_.kept[static_cast<std::size_t>(row)].clear();
    profile.backward_transient = peak - stays;
    return results;
  }

  /// Which gradients the row makes, and the bytes of those.
  Bytes note_gradients(int row, const Bundle& made, const Bundle& gradients) {
    LayerProfile& profile = profiles_[static_cast<std::size_t>(row)];
    const Row& seen = rows_[static_cast<std::size_t>(row)];
    Bytes sum;
    if (profile.inputs.size() == 1 && profile.outputs.size() <= 1) {
      const bool is_view = !profile.outputs.empty() && profile.outputs[0].same_as;
      const bool makes = row > 0 && !chain_.frozen(row - 1);
      return makes && !is_view ? seen.input_bytes[0] : sum;  // a view's gradient is a view
    }
    std::size_t next = 0;
    for (std::size_t i = 0; i < profile.inputs.size() && next < made.size(); ++i) {
      if (!seen.inputs_with_gradient[i]) continue;
      const int through = position_of(key_of(made[next++]), gradients);
      if (through < 0) {
        profile.inputs[i].makes_gradient = true;
        sum += seen.input_bytes[i];
        continue;
      }
      int output = -1;
      for (int left = through; left >= 0; --left) {
        do {
          ++output;
        } while (!profile.outputs[static_cast<std::size_t>(output)].has_gradient);
      }
      profile.inputs[i].gradient_of = output;
    }
    return sum;
  }

  /// What lies between the halves of the row's backward, and which of it is not the row's own.
  void note_kept_for_weight(int row, const Bundle& gradients) {
    LayerProfile& profile = profiles_[static_cast<std::size_t>(row)];
    const Row& seen = rows_[static_cast<std::size_t>(row)];
    Storages storages(chain_.device());
    storages.add(work_.kept[static_cast<std::size_t>(row)].for_weight);
    storages.take_all(chain_.weights_read(row));
    storages.take_all(chain_.buffers(row));
    for (const auto& [name, field] : data_.fields) storages.take(key_of(field));
    for (std::size_t i = 0; i < seen.inputs.size(); ++i) {
      profile.inputs[i].kept_for_weight = storages.take(key_of(seen.inputs[i]));
    }
    std::size_t next = 0;
    for (std::size_t i = 0; i < seen.outputs.size(); ++i) {
      OutputProfile& output = profile.outputs[i];
      output.kept_for_weight = storages.take(key_of(seen.outputs[i]));
      if (output.has_gradient) output.gradient_kept = storages.take(key_of(gradients[next++]));
    }
    profile.weight_half_keeps_input = profile.weight_half_keeps_output = false;  // as_chain() says it
    profile.kept_for_weight = storages.bytes();
  }

  Chain& chain_;
  ChainInput data_;  // on the chain's device: what a row loads is told by its storage
  MemoryMeter meter_;
  ChainWork work_;
  std::vector<LayerProfile> profiles_;
  std::vector<Row> rows_;
};

}  // namespace

std::vector<LayerProfile> measure_memory(Chain& chain, const ChainInput& data) {
  return MemoryPass(chain, data).run();
}

}  // namespace stagecraft
