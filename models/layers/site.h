#pragma once

// Where a layer is to stand. A layer is made from its settings and its site by a function
// `LayerPtr make_layer(const Spec&, const LayerSite&)`, which throws InputError, naming the layer and the
// shape it was given, where they do not fit. Shapes are those of one sample: [features],
// [channels, height, width], [tokens] or [tokens, hidden_size].
//
// The comment over each layer's settings says what it keeps of a micro-batch (F->I until backward_input,
// I->W until backward_weight). Kept inputs and outputs share memory with the neighbouring layer's tensors;
// they are no copies.

#include "base/error.h"
#include "base/fields.h"
#include "models/layers/layer.h"
#include "models/tensors/matrix_products.h"

#include <cstdint>
#include <string>
#include <vector>

namespace stagecraft {

struct LayerSite {
  std::string name;
  std::vector<std::int64_t> input;  ///< shape of one sample
  std::vector<std::int64_t> two;    ///< of a micro-batch of two: samples need not be the first dimension
  std::string from;                 ///< the layer that gives it, for errors; empty: the data
  at::ScalarType input_dtype = at::kFloat;
  std::int64_t vocabulary = 0;                     ///< number of different tokens; 0: no tokens
  MatrixProducts products = MatrixProducts::blas;  ///< how it multiplies matrices on the CPU
  InputPlace place;                                ///< in the config, for errors
  double linear_deviation = 0;  ///< of a linear layer's weights; 0: PyTorch's default, uniform by fan-in

  /// Throws InputError: layer "output" cannot take [4, 8, 8], a sample as "conv" gives it: what is expected
  [[noreturn]] void refuse(const std::string& expected) const;
};

}  // namespace stagecraft
