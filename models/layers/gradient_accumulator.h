#pragma once

// The one gradient sink: accumulates the weight gradients of one layer, in the order they come, into tensors
// that stay. Engine, oracle and profiler all add through it, so they round alike.

#include "models/layers/layer.h"
#include "models/tensors/matrix_products.h"

#include <string>
#include <utility>
#include <vector>

namespace stagecraft {

class GradientAccumulator final : public GradientSink {
 public:
  GradientAccumulator() = default;
  /// One gradient per parameter (of full precision), of its shape and dtype; memory is taken here, once.
  /// `of`, whose parameters they are, is for messages, must outlive the accumulator and may be null.
  explicit GradientAccumulator(const Tensors& parameters, MatrixProducts products = MatrixProducts::blas,
                               const Layer* of = nullptr);

  void add_product(int parameter, const at::Tensor& left, const at::Tensor& right) override;
  void add(int parameter, const at::Tensor& gradient) override;

  /// Starts a new accumulation: the next contribution to each parameter writes, later ones add.
  void clear();
  /// The sums. Parameters that nothing was added to are zero.
  [[nodiscard]] const Tensors& gradients();
  /// By parameter: something was added since clear(). PyTorch has no gradient of the others.
  [[nodiscard]] std::vector<bool> received() const;
  /// Other contributions were added to the sums from outside: all parameters have received some.
  void receive_all() { filled_.clear(); }
  void receive(std::size_t parameter) {
    if (!filled_.empty()) filled_[parameter] = false;
  }

  // For contributions that are recorded once and repeated: where the sums lie, and which parameters have had
  // one, which decides what a contribution does.
  [[nodiscard]] const Tensors& memory() const { return gradients_; }
  [[nodiscard]] const std::vector<bool>& written() const { return written_; }
  void set_written(std::vector<bool> written) { written_ = std::move(written); }

 private:
  /// Of a contribution. Throws InternalError where it cannot be one.
  [[nodiscard]] const at::Tensor& sum_for(int parameter, const at::Tensor& one) const;
  [[nodiscard]] std::string name_of(int parameter) const;
  /// True for the first contribution to `parameter` since clear().
  bool first(int parameter);

  Tensors gradients_;
  std::vector<bool> written_;
  MatrixProducts products_ = MatrixProducts::blas;
  const Layer* of_ = nullptr;
  std::vector<bool> filled_;  ///< written, but with zeros; empty: none
};

}  // namespace stagecraft
