#include "models/tensors/safetensors_header.h"

#include "base/error.h"
#include "base/json.h"
#include "models/tensors/shape_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <tuple>

namespace stagecraft {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

constexpr std::uint64_t kLongestHeader = 100'000'000;  // the format's own limit

constexpr std::array kDtypes{
    std::pair{at::kDouble, "F64"},    std::pair{at::kFloat, "F32"},       std::pair{at::kHalf, "F16"},
    std::pair{at::kBFloat16, "BF16"}, std::pair{at::kLong, "I64"},        std::pair{at::kInt, "I32"},
    std::pair{at::kShort, "I16"},     std::pair{at::kChar, "I8"},         std::pair{at::kByte, "U8"},
    std::pair{at::kBool, "BOOL"},     std::pair{at::kComplexFloat, "C64"}};

class HeaderReader {
 public:
  HeaderReader(std::string path, std::uint64_t data_bytes)
      : path_(std::move(path)), data_bytes_(data_bytes) {}

  SafetensorsEntry entry(const std::string& name, const Json& json) const {
    if (!json.is_object() || json.size() != 3 || !json.contains("dtype") || !json.contains("shape") ||
        !json.contains("data_offsets")) {
      refuse(name, "expected an object with dtype, shape and data_offsets");
    }
    SafetensorsEntry entry{name, dtype(name, json["dtype"]), numbers(name, json["shape"]), 0, 0};
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
      refuse(name, fmt::format("{} of {} takes {} bytes, data_offsets span {}", shape_text(entry.shape),
                               safetensors_dtype(entry.dtype), bytes, entry.end - entry.begin));
    }
    return entry;
  }

  /// Every byte of data belongs to exactly one tensor. Sorts by where that is.
  void check_cover(std::vector<SafetensorsEntry>& entries) const {
    std::sort(entries.begin(), entries.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
      return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
    });
    std::uint64_t covered = 0;
    for (const SafetensorsEntry& entry : entries) {
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

std::uint64_t safetensors_header_length(const std::string& path, const char* first,
                                        std::uint64_t file_bytes) {
  const std::string_view beginning(first, kSafetensorsLengthBytes);
  if (std::ranges::all_of(
          beginning, [](char c) { return c == '\n' || c == '\r' || c == '\t' || (c >= ' ' && c <= '~'); })) {
    throw InputError(
        {path, ""},
        "is text and no safetensors file; write it with numpy.save, or safetensors.numpy.save_file");
  }
  std::uint64_t length = 0;
  std::memcpy(&length, first, kSafetensorsLengthBytes);
  if (length > kLongestHeader || length > file_bytes - kSafetensorsLengthBytes) {
    throw InputError({path, ""}, fmt::format("says its header is {} bytes, the file is {} (truncated, or no "
                                             "safetensors file)",
                                             length, file_bytes));
  }
  return length;
}

SafetensorsHeader parse_safetensors_header(const std::string& path, std::string_view text,
                                           std::uint64_t data_bytes) {
  const Json json = json::parse_text(std::string(text), path);
  if (!json.is_object()) throw InputError({path, ""}, "its header is not a JSON object");
  SafetensorsHeader header;
  const HeaderReader reader(path, data_bytes);
  for (const auto& [name, about] : json.items()) {
    if (name == kSafetensorsMetadata) {
      json::read_value(about, {path, std::string("/") + kSafetensorsMetadata}, header.metadata,
                       json::Range{});
    } else {
      header.entries.push_back(reader.entry(name, about));
    }
  }
  reader.check_cover(header.entries);  // and leaves them in the order of their data
  return header;
}

std::string safetensors_header_text(const SafetensorsHeader& header) {
  Json json = Json::object();
  if (!header.metadata.empty()) json[kSafetensorsMetadata] = header.metadata;
  for (const SafetensorsEntry& entry : header.entries) {
    json[entry.name] = Json{{"dtype", safetensors_dtype(entry.dtype)},
                            {"shape", entry.shape},
                            {"data_offsets", {entry.begin, entry.end}}};
  }
  std::string text = json.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), kSafetensorsLengthBytes) + text;
}

const char* safetensors_dtype(at::ScalarType dtype) {
  for (const auto& [candidate, name] : kDtypes) {
    if (candidate == dtype) return name;
  }
  STAGECRAFT_CHECK(false, fmt::format("safetensors has no dtype {}", c10::toString(dtype)));
  return "";
}

}  // namespace stagecraft
