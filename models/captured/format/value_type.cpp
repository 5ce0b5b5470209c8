#include "models/captured/format/value_type.h"

#include "base/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

namespace stagecraft::captured {
namespace {

constexpr std::array kDtypes{
    std::pair{"f32", at::kFloat}, std::pair{"f64", at::kDouble},       std::pair{"bf16", at::kBFloat16},
    std::pair{"f16", at::kHalf},  std::pair{"i64", at::kLong},         std::pair{"i32", at::kInt},
    std::pair{"bool", at::kBool}, std::pair{"c64", at::kComplexFloat}, std::pair{"c128", at::kComplexDouble}};
constexpr std::size_t kMostDimensions = 64;  // LibTorch's own limit
constexpr std::int64_t kMostSize = std::int64_t{1} << 48U;

/// Reads sizes from left to right.
class SizesReader {
 public:
  explicit SizesReader(std::string_view text) : rest_(text) {}

  bool take(char c) {
    if (rest_.empty() || rest_.front() != c) return false;
    rest_.remove_prefix(1);
    return true;
  }
  std::optional<std::int64_t> number() {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
    if (error != std::errc() || value < 0 || value > kMostSize || rest_.front() == '-') return std::nullopt;
    rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
    return value;
  }
  /// 64, b, 16*b, b+1, 16*b+1.
  std::optional<AffineSize> size() {
    AffineSize size;
    if (!take('b')) {
      const std::optional<std::int64_t> first = number();
      if (!first) return std::nullopt;
      if (!take('*')) return AffineSize{0, *first};
      if (*first == 0 || !take('b')) return std::nullopt;
      size.times = *first;
    } else {
      size.times = 1;
    }
    const bool minus = !rest_.empty() && rest_.front() == '-';
    if (!take('+') && !take('-')) return size;
    const std::optional<std::int64_t> plus = number();
    if (!plus) return std::nullopt;
    size.plus = minus ? -*plus : *plus;
    return size;
  }
  [[nodiscard]] bool empty() const { return rest_.empty(); }

 private:
  std::string_view rest_;
};

std::optional<ValueType> parsed(std::string_view text) {
  const std::size_t open = text.find('[');
  if (open == std::string_view::npos || !text.ends_with(']')) return std::nullopt;
  const std::optional<at::ScalarType> dtype = dtype_named(text.substr(0, open));
  if (!dtype) return std::nullopt;
  ValueType type{*dtype, {}};
  SizesReader sizes(text.substr(open + 1, text.size() - open - 2));
  while (!sizes.empty()) {
    if (!type.sizes.empty() && !sizes.take(',')) return std::nullopt;
    const std::optional<AffineSize> size = sizes.size();
    if (!size || type.sizes.size() == kMostDimensions) return std::nullopt;
    type.sizes.push_back(*size);
  }
  return type;
}

}  // namespace

std::int64_t AffineSize::at(std::int64_t b) const {
  std::int64_t value = 0;
  if (__builtin_mul_overflow(times, b, &value) || __builtin_add_overflow(value, plus, &value)) {
    throw InputError(fmt::format("{} is too large for micro-batches of {} samples", text(), b));
  }
  return value;
}

std::string AffineSize::text() const {
  if (times == 0) return fmt::format("{}", plus);
  const std::string product = times == 1 ? "b" : fmt::format("{}*b", times);
  return plus == 0 ? product : fmt::format("{}{:+}", product, plus);
}

bool ValueType::depends_on_b() const {
  return std::any_of(sizes.begin(), sizes.end(), [](const AffineSize& size) { return size.depends_on_b(); });
}

std::vector<std::int64_t> ValueType::at(std::int64_t b) const {
  std::vector<std::int64_t> shape;
  shape.reserve(sizes.size());
  for (const AffineSize& size : sizes) {
    shape.push_back(size.at(b));
    if (shape.back() < 0) {
      throw InputError(fmt::format("{} has a negative size for micro-batches of {} samples", text(), b));
    }
  }
  return shape;
}

std::optional<std::int64_t> ValueType::samples_of(c10::ArrayRef<std::int64_t> shape) const {
  if (shape.size() != sizes.size()) return std::nullopt;
  std::optional<std::int64_t> b;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (!sizes[i].depends_on_b()) {
      if (shape[i] != sizes[i].plus) return std::nullopt;
      continue;
    }
    const std::int64_t product = shape[i] - sizes[i].plus;
    if (product % sizes[i].times != 0) return std::nullopt;
    const std::int64_t found = product / sizes[i].times;
    if (found < 1 || b.value_or(found) != found) return std::nullopt;
    b = found;
  }
  return b.value_or(1);
}

std::string ValueType::text() const {
  std::string text = dtype_name(dtype) + "[";
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (i > 0) text += ',';
    text += sizes[i].text();
  }
  text += ']';
  return text;
}

ValueType parse_value_type(std::string_view text, const InputPlace& place) {
  std::optional<ValueType> type = parsed(text);
  if (!type) {
    throw InputError(place,
                     fmt::format("expected a type like f32[b,64] or i64[4*b+1], with one of {}; found {}",
                                 all_dtype_names(), json::brief(std::string(text))));
  }
  return *std::move(type);
}

std::optional<at::ScalarType> dtype_named(std::string_view name) {
  for (const auto& [candidate, dtype] : kDtypes) {
    if (name == candidate) return dtype;
  }
  return std::nullopt;
}

std::string dtype_name(at::ScalarType dtype) {
  for (const auto& [name, candidate] : kDtypes) {
    if (candidate == dtype) return name;
  }
  return c10::toString(dtype);
}

std::string all_dtype_names() {
  std::string names;
  for (const auto& [name, dtype] : kDtypes) {
    if (!names.empty()) names += ", ";
    names += name;
  }
  return names;
}

}  // namespace stagecraft::captured
