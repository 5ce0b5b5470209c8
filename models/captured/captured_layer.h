#pragma once

#include "models/captured/model_folder.h"
#include "models/layers/site.h"

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace stagecraft {

/// How a weight's gradient is added to those of the micro-batches before: made and then added, as PyTorch does
/// to the bit, or multiplied into the sum where it is a product, without memory of its own.
enum class Accumulate : std::uint8_t { exact, fused };
template <>
inline constexpr std::array enum_names<Accumulate>{"exact", "fused"};

inline constexpr const char* kAccumulateDoc =
    "how weight gradients add up over micro-batches: exact, as PyTorch does to the bit, or fused into the "
    "matrix products, which takes less time and memory and rounds otherwise";
inline constexpr const char* kUseCompiledDoc =
    "whether to load and run the folder's compiled code: off (default), allow (where it fits), or require; "
    "it is "
    "native code, for folders that you trust as you trust programs";

/// A layer of a model captured from PyTorch (docs/reference/model_folder.md). Keeps what its graph says, and
/// buffers that backward_input reads. Starts with the folder's weights.
struct CapturedLayerSpec {
  static constexpr const char* kName = "captured";
  std::string path;     ///< of the folder
  std::string layer;    ///< its name in the manifest
  std::string weights;  ///< where they come from; empty: the folder
  Accumulate accumulate = Accumulate::exact;
  std::optional<UseCompiled> compiled{};  ///< absent: off
  captured::FolderReader reader;
};
void describe(Fields& v, CapturedLayerSpec& s);
[[nodiscard]] LayerPtr make_layer(const CapturedLayerSpec& spec, const LayerSite& site);

}  // namespace stagecraft
