#pragma once

#include "test/engine/delays.h"

#include <ATen/ops/from_blob.h>

namespace stagecraft::test {

/// A transport of the hosts that takes tensors of a fake device, as a CUDA-aware MPI those of a GPU: their
/// memory is the CPU's. Now and then takes its time. Counts what was begun.
class DeviceMemoryHosts final : public DelayedTransport {
 public:
  using DelayedTransport::DelayedTransport;

  [[nodiscard]] bool takes_device_memory() const override { return true; }
  [[nodiscard]] RequestPtr post_receive(Rank from, const Tag& tag, const at::Tensor& into) override {
    ++begun_;
    return DelayedTransport::post_receive(from, tag, seen_by_host(into));
  }
  [[nodiscard]] RequestPtr start_send(Rank to, const Tag& tag, const at::Tensor& tensor) override {
    ++begun_;
    return DelayedTransport::start_send(to, tag, seen_by_host(tensor));
  }
  [[nodiscard]] RequestPtr post_send(Rank to, const Tag& tag, const at::Tensor& tensor) override {
    ++begun_;
    return DelayedTransport::post_send(to, tag, seen_by_host(tensor));
  }
  [[nodiscard]] int begun() const { return begun_; }

 private:
  static at::Tensor seen_by_host(const at::Tensor& tensor) {
    if (tensor.is_cpu()) return tensor;
    return at::from_blob(
        const_cast<void*>(tensor.const_data_ptr()), tensor.sizes(), tensor.strides(), [tensor](void*) {},
        at::TensorOptions(at::kCPU).dtype(tensor.scalar_type()));
  }

  int begun_ = 0;
};

}  // namespace stagecraft::test
