#include "engine/run/show/products_note.h"

#include "models/tensors/matrix_products.h"

#include <fmt/format.h>

namespace stagecraft {

std::string products_note(const ProductRates& rates) {
  constexpr double kMuch = 1.5;
  if (rates.onednn < kMuch * rates.blas) return "";
  return fmt::format(
      "float32 products reach {:.0f} GFLOP/s per core here with the BLAS, and {:.0f} with oneDNN: "
      "\"matrix_products\": \"onednn\" makes steps shorter, and results other than PyTorch's in their last "
      "bits",
      rates.blas / 1e9, rates.onednn / 1e9);
}

std::string products_note(const ResolvedRun& run) {
  constexpr Seconds kWorthIt{120};
  const RunConfig& config = run.config;
  const bool is_float32 = config.dtype == DType::float32 && !config.bf16.enabled && !config.fp16.enabled;
  const bool may_choose = config.device == DeviceKind::cpu && is_float32 && !config.matrix_products;
  // A resumed run keeps the arithmetic that it has.
  const bool begins = run.start.checkpoint.empty() && run.plan.predicted;
  if (!may_choose || !begins || !has_onednn_products()) return "";
  if (run.plan.predicted->step * static_cast<double>(*config.train_steps) < kWorthIt) return "";
  return products_note(measure_products());
}

}  // namespace stagecraft
