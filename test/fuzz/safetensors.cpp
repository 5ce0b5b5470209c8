// Weight files: what is read is written and read back with the same tensors. Half of the changes are to the
// header's values, with the length before it and the data behind it made to fit.

#include "models/tensors/safetensors.h"

#include "base/error.h"
#include "base/json.h"
#include "models/tensors/safetensors_writer.h"
#include "test/fuzz/json_changes.h"
#include "test/fuzz/judge.h"
#include "test/fuzz/scratch_folder.h"
#include "test/fuzz/target.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

namespace stagecraft::fuzz {
namespace {

constexpr std::size_t kLengthBytes = 8;

std::string bytes_of(const at::Tensor& tensor) {
  return {static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()};
}

bool same(const SafetensorsFile& a, const SafetensorsFile& b) {
  if (a.metadata != b.metadata || a.tensors.size() != b.tensors.size()) return false;
  for (const auto& [name, tensor] : a.tensors) {
    const auto other = b.tensors.find(name);
    if (other == b.tensors.end() || tensor.sizes() != other->second.sizes() ||
        tensor.scalar_type() != other->second.scalar_type() || bytes_of(tensor) != bytes_of(other->second)) {
      return false;
    }
  }
  return true;
}

/// Where the header says its data ends, within reason.
std::size_t data_end(const Json& header) {
  std::uint64_t end = 0;
  for (const auto& [name, entry] : header.items()) {
    if (!entry.is_object() || !entry.contains("data_offsets") || entry["data_offsets"].size() != 2) continue;
    const Json& last = entry["data_offsets"].back();
    if (last.is_number_unsigned()) end = std::max(end, last.get<std::uint64_t>());
  }
  return std::min<std::uint64_t>(end, 4096);
}

/// The file with its header's values changed; "" where it has none.
std::string change_header(const std::string& file, unsigned seed) {
  std::uint64_t length = 0;
  if (file.size() < kLengthBytes) return "";
  std::memcpy(&length, file.data(), kLengthBytes);
  if (length > file.size() - kLengthBytes) return "";
  const std::string header = change_json(file.substr(kLengthBytes, length), seed);
  if (header.empty()) return "";
  std::string data = file.substr(kLengthBytes + length);
  try {
    data.resize(data_end(json::parse_text(header, "x")), 'x');
  } catch (const InputError&) {  // changed to what JSON readers refuse: nested too deep
  }
  length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), kLengthBytes) + header + data;
}

}  // namespace
}  // namespace stagecraft::fuzz

FUZZ_MUTATOR(safetensors) {
  using namespace stagecraft;
  if (seed % 2 == 1) {
    const std::string changed = fuzz::change_header(std::string(data, data + size), seed / 2);
    if (!changed.empty()) return fuzz::put(changed, data, max_size);
  }
  return LLVMFuzzerMutate(data, size, max_size);
}

FUZZ_TARGET(safetensors) {
  using namespace stagecraft;
  static const fuzz::ScratchFolder folder;
  SafetensorsFile file;
  try {
    file = read_safetensors(folder.write("read.safetensors", std::string(data, data + size)));
  } catch (const InputError&) {
    return 0;
  }
  fuzz::accepted();
  const std::string path = folder.path("written.safetensors");
  write_safetensors(path, {file.tensors.begin(), file.tensors.end()}, file.metadata);
  fuzz::require(fuzz::same(read_safetensors(path), file), "tensors read back");
  return 0;
}
