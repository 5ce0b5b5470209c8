#include "stagecraft/models/safetensors_writer.h"

#include "stagecraft/base/error.h"
#include "stagecraft/base/files.h"

#include <c10/util/accumulate.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

namespace stagecraft {
namespace {

constexpr std::size_t kPiece = std::size_t{16} << 20U;

}  // namespace

std::uint64_t StreamedTensor::bytes() const {
  return static_cast<std::uint64_t>(c10::multiply_integers(shape)) * c10::elementSize(dtype);
}

void write_safetensors_streamed(const std::string& path, std::vector<StreamedTensor> tensors,
                                const std::map<std::string, std::string>& metadata,
                                const std::function<void(std::uint64_t bytes)>& written) {
  // Widest elements first, so that every tensor is aligned for readers that map the file.
  std::stable_sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) {
    return c10::elementSize(a.dtype) > c10::elementSize(b.dtype);
  });
  SafetensorsHeader header{{}, metadata};
  std::set<std::string> names{kSafetensorsMetadata};
  std::uint64_t offset = 0;
  for (const StreamedTensor& tensor : tensors) {
    STAGECRAFT_CHECK(names.insert(tensor.name).second, "two tensors named " + tensor.name);
    header.entries.push_back({tensor.name, tensor.dtype, tensor.shape, offset, offset + tensor.bytes()});
    offset += tensor.bytes();
  }

  StoredFilePtr file;
  if (const std::error_code error = storage().open(path, OpenFor::making, file))
    throw unwritable(path, error);
  const auto write = [&](std::string_view bytes) {
    if (const std::error_code error = write_all(*file, bytes)) throw unwritable(path, error);
    if (written) written(bytes.size());
  };
  write(safetensors_header_text(header));
  for (const StreamedTensor& tensor : tensors) {
    const at::Tensor value = tensor.make().cpu().contiguous();
    STAGECRAFT_CHECK(value.scalar_type() == tensor.dtype && value.sizes() == tensor.shape,
                     tensor.name + " is of another type or shape than announced");
    std::string_view rest{static_cast<const char*>(value.const_data_ptr()), value.nbytes()};
    for (; !rest.empty(); rest.remove_prefix(std::min(rest.size(), kPiece))) write(rest.substr(0, kPiece));
  }
  if (const std::error_code error = file->sync()) throw unwritable(path, error);
}

}  // namespace stagecraft
