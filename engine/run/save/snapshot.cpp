#include "engine/run/save/snapshot.h"

#include "base/error.h"

#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <functional>
#include <sys/mman.h>

namespace stagecraft {
namespace {

/// As vectors of any processor have it.
constexpr std::size_t kAlignment = 64;

std::size_t room_for(const at::Tensor& tensor) {
  return (tensor.nbytes() + kAlignment - 1) / kAlignment * kAlignment;
}

void each_tensor(SavedLayer& layer, const std::function<void(at::Tensor&)>& visit) {
  for (Tensors* tensors : {&layer.state.parameters, &layer.state.buffers}) {
    for (at::Tensor& tensor : *tensors) {
      if (tensor.defined()) visit(tensor);
    }
  }
  for (auto& of_parameter : layer.state.optimizer.tensors) {
    for (auto& [name, tensor] : of_parameter) visit(tensor);
  }
}

}  // namespace

Snapshot::~Snapshot() {
  layers_.clear();
  if (memory_ != nullptr) munmap(memory_, size_);
}

void Snapshot::take(const Worker& worker, const Model& model, const std::vector<int>& layers) {
  layers_.clear();
  std::size_t bytes = 0;
  for (const int index : layers) {
    SavedLayer& layer = layers_.emplace(index, saved_layer(worker, model, index)).first->second;
    each_tensor(layer, [&](const at::Tensor& tensor) { bytes += room_for(tensor); });
  }
  if (bytes > size_) make_room(bytes);
  std::byte* place = memory_;
  for (auto& [index, layer] : layers_) {
    each_tensor(layer, [&](at::Tensor& tensor) {
      const at::Tensor copy = at::from_blob(place, tensor.sizes(), tensor.options());
      copy.copy_(tensor.detach());
      place += room_for(tensor);
      tensor = copy;
    });
  }
}

void Snapshot::make_room(std::size_t bytes) {
  if (memory_ != nullptr) munmap(memory_, size_);
  memory_ = nullptr;
  size_ = 0;
  void* const made = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (made == MAP_FAILED) {
    throw InputError(fmt::format("no memory for a snapshot of {} bytes (checkpoint.in_background): {}", bytes,
                                 std::strerror(errno)));
  }
  memory_ = static_cast<std::byte*>(made);
  size_ = bytes;
}

}  // namespace stagecraft
