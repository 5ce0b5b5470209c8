#pragma once

// Writes a safetensors file tensor by tensor, so that memory holds one of them, however large the file is.

#include "stagecraft/base/storage.h"
#include "stagecraft/models/safetensors_header.h"

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace stagecraft {

/// A tensor that is made when its turn comes.
struct StreamedTensor {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  std::vector<std::int64_t> shape;
  std::function<at::Tensor()> make;  ///< of that type and shape

  [[nodiscard]] std::uint64_t bytes() const;
};

/// Makes `path`, where there must be nothing, and syncs it. `written` hears of every piece's bytes. Names must
/// differ. Throws InputError where it cannot be written.
void write_safetensors_streamed(const std::string& path, std::vector<StreamedTensor> tensors,
                                const std::map<std::string, std::string>& metadata,
                                const std::function<void(std::uint64_t bytes)>& written);

}  // namespace stagecraft
