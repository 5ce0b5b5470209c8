#pragma once

// Writes safetensors files (safetensors.h): tensor by tensor, so that memory holds one of them, however large the
// file is, or whole.

#include "base/storage.h"
#include "models/tensors/safetensors_header.h"

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
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

/// A file's bytes in pieces, of which the tensors' are their own memory. Names must differ and not be
/// "__metadata__". Tensors that are not dense or not on the CPU are copied for it.
class SafetensorsImage {
 public:
  explicit SafetensorsImage(const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                            const std::map<std::string, std::string>& metadata = {});
  /// Valid while this is.
  [[nodiscard]] std::vector<std::string_view> pieces() const;

 private:
  std::string header_;  ///< with its length in front
  std::vector<at::Tensor> dense_;
};

/// Replaces `path` atomically with the image.
void write_safetensors(const std::string& path,
                       const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace stagecraft
