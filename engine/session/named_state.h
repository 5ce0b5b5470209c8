#pragma once

// The weights and buffers of a model by the names that their user knows: those of the module in PyTorch, for a captured
// model, and "layer.parameter" for any other.

#include "engine/core/worker.h"
#include "models/model.h"

#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace stagecraft {

/// Where a model has a tensor.
struct TensorPlace {
  int layer = 0;
  bool parameter = true;  ///< or a buffer
  std::size_t index = 0;  ///< among the layer's
};

class NamedState {
 public:
  /// `captured`: names are those of PyTorch already, whatever the layer.
  NamedState(const Model& model, bool captured);

  /// All places of each tensor: several of a tied weight, or of a buffer that several layers read.
  [[nodiscard]] const std::map<std::string, std::vector<TensorPlace>>& places() const { return places_; }

  /// Copies of what `worker` holds, into `state`; of several places the first.
  void read(const Worker& worker, std::map<std::string, at::Tensor>& state) const;
  /// Sets what `worker` holds. Throws InputError for a tensor that `weights` lacks or has in another shape.
  void write(const std::map<std::string, at::Tensor>& weights, Worker& worker) const;

 private:
  std::map<std::string, std::vector<TensorPlace>> places_;
};

}  // namespace stagecraft
