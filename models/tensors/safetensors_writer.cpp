#include "models/tensors/safetensors_writer.h"

#include "base/error.h"
#include "base/files.h"

#include <c10/util/accumulate.h>

#include <algorithm>
#include <functional>
#include <set>
#include <string_view>
#include <utility>

namespace stagecraft {
namespace {

constexpr std::size_t kPiece = std::size_t{16} << 20U;

std::string_view bytes_of(const at::Tensor& tensor) {
  return {static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()};
}

/// The header's bytes. Puts widest elements first, so that every tensor is aligned for readers that map the file.
std::string lay_out(std::vector<StreamedTensor>& tensors,
                    const std::map<std::string, std::string>& metadata) {
  std::ranges::stable_sort(tensors, std::ranges::greater{},
                           [](const StreamedTensor& tensor) { return c10::elementSize(tensor.dtype); });
  SafetensorsHeader header{{}, metadata};
  std::set<std::string> names{kSafetensorsMetadata};
  std::uint64_t offset = 0;
  for (const StreamedTensor& tensor : tensors) {
    STAGECRAFT_CHECK(names.insert(tensor.name).second, "two tensors named " + tensor.name);
    header.entries.push_back({tensor.name, tensor.dtype, tensor.shape, offset, offset + tensor.bytes()});
    offset += tensor.bytes();
  }
  return safetensors_header_text(header);
}

}  // namespace

std::uint64_t StreamedTensor::bytes() const {
  return static_cast<std::uint64_t>(c10::multiply_integers(shape)) * c10::elementSize(dtype);
}

void write_safetensors_streamed(const std::string& path, std::vector<StreamedTensor> tensors,
                                const std::map<std::string, std::string>& metadata,
                                const std::function<void(std::uint64_t bytes)>& written) {
  const std::string header = lay_out(tensors, metadata);
  StoredFilePtr file;
  if (const std::error_code error = storage().open(path, OpenFor::making, file))
    throw unwritable(path, error);
  const auto write = [&](std::string_view bytes) {
    if (const std::error_code error = write_all(*file, bytes)) throw unwritable(path, error);
    if (written) written(bytes.size());
  };
  write(header);
  for (const StreamedTensor& tensor : tensors) {
    const at::Tensor value = tensor.make().cpu().contiguous();
    STAGECRAFT_CHECK(value.scalar_type() == tensor.dtype && value.sizes() == tensor.shape,
                     tensor.name + " is of another type or shape than announced");
    std::string_view rest = bytes_of(value);
    for (; !rest.empty(); rest.remove_prefix(std::min(rest.size(), kPiece))) write(rest.substr(0, kPiece));
  }
  if (const std::error_code error = file->sync()) throw unwritable(path, error);
}

SafetensorsImage::SafetensorsImage(const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                                   const std::map<std::string, std::string>& metadata) {
  std::vector<StreamedTensor> streamed;
  for (const auto& named : tensors) {
    const at::Tensor& tensor = named.second;
    streamed.push_back({named.first, tensor.scalar_type(), tensor.sizes().vec(),
                        [tensor] { return tensor.cpu().contiguous(); }});
  }
  header_ = lay_out(streamed, metadata);
  for (const StreamedTensor& tensor : streamed) dense_.push_back(tensor.make());
}

std::vector<std::string_view> SafetensorsImage::pieces() const {
  std::vector<std::string_view> pieces{header_};
  for (const at::Tensor& tensor : dense_) pieces.push_back(bytes_of(tensor));
  return pieces;
}

void write_safetensors(const std::string& path,
                       const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  write_file_atomically(path, SafetensorsImage(tensors, metadata).pieces());
}

}  // namespace stagecraft
