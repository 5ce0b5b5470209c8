#pragma once

// Weight files in the safetensors format (github.com/huggingface/safetensors): eight bytes with the length of
// a JSON header, little-endian; the header, {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0,
// 24]}, ...} with optional text under "__metadata__"; then the tensors' bytes, densely, without gaps.

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace stagecraft {

struct SafetensorsFile {
  std::string path;
  std::map<std::string, at::Tensor> tensors;  ///< on the CPU, each with memory of its own
  std::map<std::string, std::string> metadata;

  /// Throws InputError, naming the file, where there is no such tensor or it has another shape or dtype.
  [[nodiscard]] const at::Tensor& tensor(const std::string& name, at::IntArrayRef shape,
                                         at::ScalarType dtype) const;
};

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

/// Strict: throws InputError, naming the file and the tensor, for a missing or truncated file, a malformed
/// header, an unknown dtype, sizes that do not match their offsets, offsets that overlap, leave gaps or lie
/// outside.
[[nodiscard]] SafetensorsFile read_safetensors(const std::string& path);

}  // namespace stagecraft
