#pragma once

// The header of a safetensors file (safetensors.h): which tensors lie where. Reading it is strict, and touches no
// tensor.

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace stagecraft {

struct SafetensorsEntry {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0, end = 0;  ///< bytes behind the header
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  ///< in the order of their data
  std::map<std::string, std::string> metadata;
};

/// Bytes before the header's text: its length, little-endian.
inline constexpr std::uint64_t kSafetensorsLengthBytes = 8;
inline constexpr const char* kSafetensorsMetadata = "__metadata__";

/// The length of the header's text, from the file's first eight bytes. Throws InputError where the file, of
/// `file_bytes` bytes, cannot hold such a header.
[[nodiscard]] std::uint64_t safetensors_header_length(const std::string& path, const char* first,
                                                      std::uint64_t file_bytes);
/// Throws InputError, naming `path` and the tensor: a malformed header, an unknown dtype, sizes that do not
/// match their offsets, offsets that overlap, leave gaps or lie outside of `data_bytes`.
[[nodiscard]] SafetensorsHeader parse_safetensors_header(const std::string& path, std::string_view text,
                                                         std::uint64_t data_bytes);
/// The length and the text, padded to eight bytes, for entries whose offsets are set.
[[nodiscard]] std::string safetensors_header_text(const SafetensorsHeader& header);

/// "F32". Programmer error where the format has no such dtype.
[[nodiscard]] const char* safetensors_dtype(at::ScalarType dtype);

}  // namespace stagecraft
