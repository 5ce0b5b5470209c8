#include "stagecraft/profiler/layer_memory.h"

#include "stagecraft/models/counting_allocator.h"

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

/// The distinct storages of some tensors.
class Storages {
 public:
  void add(const Tensors& tensors) {
    for (const at::Tensor& tensor : tensors) {
      if (tensor.defined()) bytes_.emplace(key_of(tensor), storage_bytes(tensor));
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
  std::map<StorageKey, Bytes> bytes_;
};

/// A storage that may be gone meanwhile; while this is kept its address names no other.
using StorageWatch = std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>>;

/// Null where it is gone.
StorageKey key_of(const StorageWatch& watch) { return watch ? watch->lock().get() : nullptr; }

/// What is learned of a row in forward and needed in backward.
struct Row {
  StorageWatch input, output;  ///< where they are kept
  Bytes input_bytes;
};

class MemoryPass {
 public:
  MemoryPass(Chain& chain, const ChainInput& data)
      : chain_(chain),
        data_(data),
        profiles_(static_cast<std::size_t>(chain.rows())),
        rows_(profiles_.size()) {}

  std::vector<LayerProfile> run() {
    const ChargeTo charge(account_);
    at::Tensor tensor = chain_.begin(data_, work_);
    for (int row = 0; row < chain_.rows(); ++row) {
      profiles_[static_cast<std::size_t>(row)].name = chain_.name(row);
      if (chain_.runs(row)) tensor = forward(row, tensor);
    }
    for (int row = chain_.rows() - 1; row >= 0; --row) {
      if (chain_.runs(row)) tensor = backward(row, tensor);
    }
    return std::move(profiles_);
  }

 private:
  at::Tensor forward(int row, const at::Tensor& input) {
    LayerProfile& profile = profiles_[static_cast<std::size_t>(row)];
    Row& seen = rows_[static_cast<std::size_t>(row)];
    profile.parameters = sum_of(chain_.weights(row));
    if (chain_.mixed()) profile.compute_copy = sum_of(chain_.weights_read(row));
    profile.buffers = sum_of(chain_.buffers(row));

    const Bytes before = account_.live();
    account_.reset_peak();
    at::Tensor output = chain_.forward(row, input, work_, 0);
    const Bytes peak = account_.peak() - before;

    profile.output = Bytes{output.defined() ? static_cast<std::int64_t>(output.nbytes()) : 0};
    profile.output_is_input = output.defined() && key_of(output) == key_of(input);
    const Kept& kept = work_.kept[static_cast<std::size_t>(row)];
    Storages storages;
    storages.add(kept.for_input);
    storages.add(kept.for_weight);
    storages.take_all(chain_.weights_read(row));
    storages.take_all(chain_.buffers(row));
    // Loaded, not made: the proof counts them apart.
    if (data_.targets.defined()) storages.take(key_of(data_.targets));
    for (const auto& [name, field] : data_.fields) storages.take(key_of(field));
    profile.fields = chain_.fields(row);
    profile.keeps_input = storages.take(key_of(input));
    profile.keeps_output = output.defined() && (storages.take(key_of(output)) ||
                                                (profile.output_is_input && profile.keeps_input));
    profile.kept_for_input = storages.bytes();
    const Bytes stays = profile.kept_for_input + (profile.output_is_input ? Bytes{} : storage_bytes(output));
    profile.forward_transient = std::max(Bytes{}, peak - stays);

    if (profile.keeps_input) seen.input.emplace(input.storage().getWeakStorageImpl());
    if (profile.keeps_output) seen.output.emplace(output.storage().getWeakStorageImpl());
    seen.input_bytes = Bytes{static_cast<std::int64_t>(input.nbytes())};
    return output;
  }

  at::Tensor backward(int row, const at::Tensor& gradient) {
    LayerProfile& profile = profiles_[static_cast<std::size_t>(row)];
    const Row& seen = rows_[static_cast<std::size_t>(row)];
    const Bytes before = account_.live();
    account_.reset_peak();
    at::Tensor result = chain_.backward_input(row, gradient, work_);
    const bool makes_gradient = row > 0 && !profile.output_is_input;
    const Bytes stays = before + (makes_gradient ? seen.input_bytes : Bytes{});
    Bytes peak = account_.peak();
    profile.backward_input_transient = peak - stays;
    if (chain_.has_weights(row)) {
      note_kept_for_weight(row, gradient);
      const Bytes between = account_.live();
      account_.reset_peak();
      chain_.backward_weight(row, work_);
      profile.backward_weight_transient = account_.peak() - between;
      peak = std::max(peak, account_.peak());
    }
    work_.kept[static_cast<std::size_t>(row)].clear();
    profile.backward_transient = peak - stays;
    return result;
  }

  /// What lies between the halves of the row's backward, and which of it is not the row's own.
  void note_kept_for_weight(int row, const at::Tensor& gradient) {
    LayerProfile& profile = profiles_[static_cast<std::size_t>(row)];
    const Row& seen = rows_[static_cast<std::size_t>(row)];
    Storages storages;
    storages.add(work_.kept[static_cast<std::size_t>(row)].for_weight);
    storages.take_all(chain_.weights_read(row));
    storages.take_all(chain_.buffers(row));
    for (const auto& [name, field] : data_.fields) storages.take(key_of(field));
    profile.weight_half_keeps_input = storages.take(key_of(seen.input));
    profile.weight_half_keeps_output = storages.take(key_of(seen.output));
    profile.weight_half_keeps_gradient = storages.take(key_of(gradient));
    profile.kept_for_weight = storages.bytes();
  }

  Chain& chain_;
  const ChainInput& data_;
  MemoryAccount account_;
  ChainWork work_;
  std::vector<LayerProfile> profiles_;
  std::vector<Row> rows_;
};

}  // namespace

std::vector<LayerProfile> measure_memory(Chain& chain, const ChainInput& data) {
  return MemoryPass(chain, data).run();
}

}  // namespace stagecraft
