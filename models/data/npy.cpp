#include "models/data/npy.h"

#include "base/files.h"
#include "models/data/data_file.h"
#include "models/data/known_format.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace stagecraft {
namespace {

constexpr std::string_view kNpyMagic = "\x93NUMPY";
constexpr std::string_view kNpyEnding = ".npy";

constexpr std::array<std::pair<std::string_view, at::ScalarType>, 10> kNpyTypes{{
    {"|u1", at::kByte},
    {"|i1", at::kChar},
    {"|b1", at::kBool},
    {"<i2", at::kShort},
    {"<i4", at::kInt},
    {"<i8", at::kLong},
    {"<u2", at::kUInt16},
    {"<f2", at::kHalf},
    {"<f4", at::kFloat},
    {"<f8", at::kDouble},
}};

/// The header's text: a Python dictionary of three keys, written by numpy in one way.
class HeaderReader {
 public:
  HeaderReader(std::string_view text, const std::string& path, const InputPlace& place)
      : text_(text), path_(path), place_(place) {}

  at::ScalarType type() const {
    const std::string_view name = quoted("'descr'");
    for (const auto& [known, dtype] : kNpyTypes) {
      if (name == known) return dtype;
    }
    refuse(fmt::format("its numbers are of type {}; expected {}", name, expected_for(name)));
  }

  std::vector<std::int64_t> shape() const {
    if (value_of("'fortran_order'").starts_with("True")) {
      refuse("it lies in Fortran's order; expected C's, as numpy.ascontiguousarray makes");
    }
    std::string_view rest = value_of("'shape'");
    std::vector<std::int64_t> shape;
    if (rest.empty() || rest.front() != '(') refuse("its header has no shape");
    rest.remove_prefix(1);
    for (;;) {
      while (!rest.empty() && (rest.front() == ' ' || rest.front() == ',')) rest.remove_prefix(1);
      if (!rest.empty() && rest.front() == ')') return shape;
      std::int64_t size = 0;
      const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), size);
      if (error != std::errc{} || size < 0 || size > kMost) refuse("its header has no shape");
      shape.push_back(size);
      rest.remove_prefix(static_cast<std::size_t>(end - rest.data()));
    }
  }

 private:
  /// What to make of an array of a type that is not read. Types are a byte order, a letter for the kind and a size.
  static std::string expected_for(std::string_view type) {
    const char order = type.empty() ? ' ' : type.front(), kind = type.size() < 2 ? ' ' : type[1];
    const std::string_view size = type.substr(std::min<std::size_t>(2, type.size()));
    const auto made = [](std::string_view to) { return fmt::format("array.astype('{}')", to); };
    if (kind == 'u') return fmt::format("whole numbers with a sign, as {} makes", made("<i8"));
    if (kind == 'f' && size != "2" && size != "4" && size != "8")
      return fmt::format("at most 64 bits each, as {} makes", made("<f8"));
    if (order == '>' && (kind == 'i' || kind == 'f'))
      return fmt::format("little-endian ones, as {} makes", made(fmt::format("<{}{}", kind, size)));
    if (kind == 'c') return "real ones, as array.real makes";
    return "numbers, and these are texts, dates or objects of Python";
  }

  static constexpr std::int64_t kMost = std::int64_t{1} << 48U;  // more than any disk holds

  [[noreturn]] void refuse(const std::string& what) const { throw data_file_error(place_, path_, what); }

  std::string_view value_of(std::string_view key) const {
    const std::size_t at = text_.find(key);
    if (at == std::string_view::npos) refuse(fmt::format("its header has no {}", key));
    std::string_view rest = text_.substr(at + key.size());
    while (!rest.empty() && (rest.front() == ' ' || rest.front() == ':')) rest.remove_prefix(1);
    return rest;
  }

  std::string_view quoted(std::string_view key) const {
    std::string_view rest = value_of(key);
    if (rest.empty() || rest.front() != '\'') refuse("its rows are records; expected numbers");
    rest.remove_prefix(1);
    return rest.substr(0, rest.find('\''));
  }

  std::string_view text_;
  const std::string& path_;
  const InputPlace& place_;
};

}  // namespace

StoredArray open_npy(const std::string& path, const InputPlace& place) {
  const auto require = [&](const std::error_code& error) {
    if (error) throw data_file_error(place, path, "cannot be read: " + error.message());
  };
  const auto refuse = [&](const std::string& what) -> void { throw data_file_error(place, path, what); };
  StoredFilePtr file;
  require(storage().open(path, OpenFor::reading, file));
  FileFacts facts;
  require(file->facts(facts));
  const std::uint64_t bytes = facts.bytes;
  const auto read = [&](std::uint64_t from, std::uint64_t count) {
    std::string text(count, '\0');
    if (const std::string what = read_exactly(*file, from, text.data(), count); !what.empty()) refuse(what);
    return text;
  };
  // Magic, major and minor version, the header's length in two bytes, since version 2 in four.
  constexpr std::size_t kShort = kNpyMagic.size() + 4;
  const std::string begin = read(0, std::min<std::uint64_t>(bytes, kFormatBytes));
  if (begin.size() < kShort + 2 || !begin.starts_with(kNpyMagic)) {
    const std::string other = known_format(begin);
    refuse("is no .npy file: it does not begin as numpy.save writes them" +
           (other.empty() ? "" : "; it is " + other));
  }
  const bool is_long = begin[kNpyMagic.size()] > 1;
  std::size_t length = 0;
  for (std::size_t i = 0; i < (is_long ? 4U : 2U); ++i)
    length |= std::size_t{static_cast<unsigned char>(begin[kNpyMagic.size() + 2 + i])} << 8 * i;
  const std::size_t data = kShort + (is_long ? 2 : 0) + length;
  if (data > bytes) refuse(fmt::format("truncated: {} bytes, its header alone has {}", bytes, data));
  const std::string text = read(data - length, length);
  const HeaderReader header(text, path, place);
  const at::ScalarType dtype = header.type();
  const std::vector<std::int64_t> shape = header.shape();
  std::size_t promised = c10::elementSize(dtype);
  for (const std::int64_t size : shape) {
    if (__builtin_mul_overflow(promised, static_cast<std::size_t>(size), &promised)) {
      refuse("its header promises more than any file has");
    }
  }
  if (promised != bytes - data) {
    refuse(fmt::format("{}: {} bytes of data, its header promises {} ({})",
                       promised > bytes - data ? "truncated" : "has more than its array", bytes - data,
                       promised, fmt::join(shape, " x ")));
  }
  return {std::move(file), path, place, data, dtype, shape};
}

std::map<std::string, StoredArray> open_npy_folder(const std::string& path, const InputPlace& place) {
  std::vector<std::string> names;
  if (const std::error_code error = storage().list(path, names)) {
    throw data_file_error(place, path, "cannot be read: " + error.message());
  }
  std::map<std::string, StoredArray> arrays;
  for (const std::string& name : names) {
    if (name.size() > kNpyEnding.size() && name.ends_with(kNpyEnding)) {
      arrays.emplace(name.substr(0, name.size() - kNpyEnding.size()), open_npy(path + "/" + name, place));
    }
  }
  return arrays;
}

}  // namespace stagecraft
