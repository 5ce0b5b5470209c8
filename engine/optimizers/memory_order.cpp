#include "engine/optimizers/memory_order.h"

#include <algorithm>
#include <utility>

namespace stagecraft {
namespace {

constexpr std::int64_t kCacheLine = 64;  // in PyTorch's kernels the unit of threads' shares, too

/// A copy that lies in `order`, seen with the dimensions of `tensor`.
at::Tensor laid_out(const at::Tensor& tensor, const std::vector<std::int64_t>& order) {
  std::vector<std::int64_t> back(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    back[static_cast<std::size_t>(order[i])] = static_cast<std::int64_t>(i);
  }
  return tensor.permute(order).clone(at::MemoryFormat::Contiguous).permute(back);
}

}  // namespace

bool shows_memory_order(const Optimizer& optimizer, const std::vector<std::int64_t>& order,
                        std::int64_t elements, std::int64_t element_bytes) {
  if (order.empty()) return false;
  return !optimizer.is_elementwise() || elements * element_bytes % kCacheLine != 0;
}

Bytes bytes_of_copies(std::int64_t elements, std::int64_t element_bytes, std::size_t states) {
  return Bytes{elements * element_bytes * static_cast<std::int64_t>(2 + states)};
}

void update_as_they_lie(const Optimizer& optimizer, const OptimizerUpdate& update,
                        const std::vector<std::vector<std::int64_t>>& orders) {
  const auto shows = [&](std::size_t i) {
    const at::Tensor& parameter = update.parameters[i];
    return parameter.is_cpu() && shows_memory_order(optimizer, orders[i], parameter.numel(),
                                                    static_cast<std::int64_t>(parameter.itemsize()));
  };
  OptimizerUpdate copied = update;
  std::vector<std::pair<at::Tensor, at::Tensor>> updated;  // where it belongs, and the copy
  for (std::size_t i = 0; i < orders.size(); ++i) {
    if (!shows(i)) continue;
    const auto copy = [&](at::Tensor& tensor) {
      at::Tensor made = laid_out(tensor, orders[i]);
      updated.emplace_back(std::exchange(tensor, made), made);
    };
    copied.gradients[i] = laid_out(copied.gradients[i], orders[i]);
    copy(copied.parameters[i]);
    for (Tensors& state : copied.state) {
      if (state[i].sizes() == update.parameters[i].sizes()) copy(state[i]);
    }
  }
  optimizer.update(copied);
  for (const auto& [tensor, copy] : updated) tensor.copy_(copy);
}

}  // namespace stagecraft
