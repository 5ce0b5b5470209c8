#include "stagecraft/models/safetensors.h"

#include "stagecraft/base/error.h"
#include "stagecraft/base/files.h"
#include "stagecraft/base/json.h"
#include "stagecraft/models/layers/functional.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <set>
#include <tuple>

namespace stagecraft {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

constexpr std::uint64_t kLengthBytes = 8;
constexpr std::uint64_t kLongestHeader = 100'000'000;  // the format's own limit
constexpr const char* kMetadata = "__metadata__";

constexpr std::array kDtypes{std::pair{at::kDouble, "F64"}, std::pair{at::kFloat, "F32"},
                             std::pair{at::kHalf, "F16"},   std::pair{at::kBFloat16, "BF16"},
                             std::pair{at::kLong, "I64"},   std::pair{at::kInt, "I32"},
                             std::pair{at::kShort, "I16"},  std::pair{at::kChar, "I8"},
                             std::pair{at::kByte, "U8"},    std::pair{at::kBool, "BOOL"}};

const char* dtype_name(at::ScalarType dtype) {
  for (const auto& [candidate, name] : kDtypes) {
    if (candidate == dtype) return name;
  }
  STAGECRAFT_CHECK(false, fmt::format("safetensors has no dtype {}", c10::toString(dtype)));
  return "";
}

std::string_view bytes_of(const at::Tensor& tensor) {
  return {static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()};
}

/// One tensor's entry in a header.
struct Entry {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0, end = 0;  // in the data
};

class HeaderReader {
 public:
  HeaderReader(std::string path, std::uint64_t data_bytes)
      : path_(std::move(path)), data_bytes_(data_bytes) {}

  Entry entry(const std::string& name, const Json& json) const {
    if (!json.is_object() || json.size() != 3 || !json.contains("dtype") || !json.contains("shape") ||
        !json.contains("data_offsets")) {
      refuse(name, "expected an object with dtype, shape and data_offsets");
    }
    Entry entry{name, dtype(name, json["dtype"]), numbers(name, json["shape"]), 0, 0};
    const std::vector<std::int64_t> offsets = numbers(name, json["data_offsets"]);
    if (offsets.size() != 2 || offsets[0] > offsets[1]) refuse(name, "data_offsets are not [begin, end]");
    entry.begin = static_cast<std::uint64_t>(offsets[0]);
    entry.end = static_cast<std::uint64_t>(offsets[1]);
    if (entry.end > data_bytes_) {
      refuse(name, fmt::format("its data ends at byte {}, the file holds {} bytes of data (truncated?)",
                               entry.end, data_bytes_));
    }
    std::uint64_t bytes = c10::elementSize(entry.dtype);
    std::int64_t extent = 1;  // of a tensor without elements LibTorch multiplies the rest of the shape
    for (const std::int64_t size : entry.shape) {
      if (__builtin_mul_overflow(extent, std::max<std::int64_t>(size, 1), &extent) ||
          __builtin_mul_overflow(bytes, static_cast<std::uint64_t>(size), &bytes)) {
        refuse(name, "its shape is too large");
      }
    }
    if (bytes != entry.end - entry.begin) {
      refuse(name,
             fmt::format("{} of {} takes {} bytes, data_offsets span {}", functional::shape_text(entry.shape),
                         dtype_name(entry.dtype), bytes, entry.end - entry.begin));
    }
    return entry;
  }

  /// Every byte of data belongs to exactly one tensor. Sorts by where that is.
  void check_cover(std::vector<Entry>& entries) const {
    std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
      return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
    });
    std::uint64_t covered = 0;
    for (const Entry& entry : entries) {
      if (entry.begin != covered) {
        refuse(entry.name,
               fmt::format("its data begins at byte {}, {} the data before it, which ends at {}", entry.begin,
                           entry.begin < covered ? "overlapping" : "leaving a gap after", covered));
      }
      covered = entry.end;
    }
    if (covered != data_bytes_) {
      throw InputError({path_, ""},
                       fmt::format("the tensors end at byte {} of {} bytes of data", covered, data_bytes_));
    }
  }

 private:
  [[noreturn]] void refuse(const std::string& name, const std::string& what) const {
    throw InputError({path_, ""}, fmt::format("tensor \"{}\": {}", name, what));
  }

  at::ScalarType dtype(const std::string& name, const Json& json) const {
    for (const auto& [candidate, text] : kDtypes) {
      if (json == text) return candidate;
    }
    refuse(name, fmt::format("unknown dtype {}", json::brief(json)));
  }

  std::vector<std::int64_t> numbers(const std::string& name, const Json& json) const {
    std::vector<std::int64_t> values;
    bool good = json.is_array();
    for (const Json& element : json) {
      good = good && element.is_number_unsigned() && element.get<std::uint64_t>() >> 62 == 0;
      if (good) values.push_back(element.get<std::int64_t>());
    }
    if (!good) refuse(name, "expected a list of numbers of at least 0, found " + json::brief(json));
    return values;
  }

  std::string path_;
  std::uint64_t data_bytes_;
};

}  // namespace

const at::Tensor& SafetensorsFile::tensor(const std::string& name, at::IntArrayRef shape,
                                          at::ScalarType dtype) const {
  const auto found = tensors.find(name);
  if (found == tensors.end()) throw InputError({path, ""}, fmt::format("has no tensor \"{}\"", name));
  const at::Tensor& tensor = found->second;
  if (tensor.sizes() != shape || tensor.scalar_type() != dtype) {
    throw InputError({path, ""},
                     fmt::format("tensor \"{}\": expected {} of {}, found {} of {}", name,
                                 functional::shape_text(shape), dtype_name(dtype),
                                 functional::shape_text(tensor.sizes()), dtype_name(tensor.scalar_type())));
  }
  return tensor;
}

SafetensorsImage::SafetensorsImage(const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                                   const std::map<std::string, std::string>& metadata) {
  std::vector<std::pair<std::string, at::Tensor>> dense;
  std::set<std::string> names{kMetadata};
  for (const auto& [name, tensor] : tensors) {
    STAGECRAFT_CHECK(names.insert(name).second, "two tensors named " + name);
    dense.emplace_back(name, tensor.cpu().contiguous());
  }
  // Widest elements first, so that every tensor is aligned for readers that map the file.
  std::stable_sort(dense.begin(), dense.end(), [](const auto& a, const auto& b) {
    return a.second.element_size() > b.second.element_size();
  });

  Json header = Json::object();
  if (!metadata.empty()) header[kMetadata] = metadata;
  std::uint64_t offset = 0;
  for (auto& [name, tensor] : dense) {
    header[name] = Json{{"dtype", dtype_name(tensor.scalar_type())},
                        {"shape", tensor.sizes().vec()},
                        {"data_offsets", {offset, offset + tensor.nbytes()}}};
    offset += tensor.nbytes();
    dense_.push_back(std::move(tensor));
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = text.size();
  header_ = std::string(reinterpret_cast<const char*>(&length), kLengthBytes) + text;
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

SafetensorsFile read_safetensors(const std::string& path) {
  StoredFilePtr in;
  if (const std::error_code error = storage().open(path, OpenFor::reading, in)) {
    throw InputError({path, ""}, "cannot be opened: " + error.message());
  }
  FileFacts facts;
  if (const std::error_code error = in->facts(facts)) {
    throw InputError({path, ""}, "cannot be read: " + error.message());
  }
  if (!facts.is_file()) throw InputError({path, ""}, "is no file");
  const std::uint64_t size = facts.bytes;
  const auto read = [&](void* to, std::uint64_t bytes) {
    for (std::uint64_t done = 0; done < bytes;) {
      std::size_t got = 0;
      const std::error_code error = in->read(static_cast<char*>(to) + done, bytes - done, got);
      if (error) throw InputError({path, ""}, "cannot be read: " + error.message());
      if (got == 0) throw InputError({path, ""}, "cannot be read to its end");
      done += got;
    }
  };

  std::uint64_t length = 0;
  if (size < kLengthBytes)
    throw InputError({path, ""}, fmt::format("is {} bytes, no safetensors file", size));
  read(&length, kLengthBytes);
  if (length > kLongestHeader || length > size - kLengthBytes) {
    throw InputError({path, ""}, fmt::format("says its header is {} bytes, the file is {} (truncated, or no "
                                             "safetensors file)",
                                             length, size));
  }
  std::string text(length, '\0');
  read(text.data(), length);
  const Json header = json::parse_text(text, path);
  if (!header.is_object()) throw InputError({path, ""}, "its header is not a JSON object");

  SafetensorsFile file{path, {}, {}};
  const HeaderReader reader(path, size - kLengthBytes - length);
  std::vector<Entry> entries;
  for (const auto& [name, json] : header.items()) {
    if (name == kMetadata) {
      json::read_value(json, {path, std::string("/") + kMetadata}, file.metadata, json::Range{});
    } else {
      entries.push_back(reader.entry(name, json));
    }
  }
  reader.check_cover(entries);  // and leaves them in the order of their data
  for (const Entry& entry : entries) {
    at::Tensor tensor = at::empty(entry.shape, entry.dtype);
    if (tensor.nbytes() > 0) read(tensor.mutable_data_ptr(), tensor.nbytes());
    file.tensors.emplace(entry.name, std::move(tensor));
  }
  return file;
}

}  // namespace stagecraft
