#include "models/captured/format/arguments.h"

#include <ATen/core/jit_type.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/Layout.h>
#include <c10/core/MemoryFormat.h>
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <limits>
#include <utility>

namespace stagecraft::captured {
namespace {

using c10::TypeKind;

constexpr std::size_t kLongestList = 4096;

/// What {"key": ...} holds; null where `json` is no such object.
const Json* object_with(const Json& json, const char* key) {
  if (!json.is_object() || json.size() != 1 || !json.contains(key)) return nullptr;
  return &json.at(key);
}

class ArgumentReader {
 public:
  ArgumentReader(const c10::Argument& schema, const FindValue& find) : schema_(schema), find_(find) {}

  Argument read(const Json& json, const InputPlace& place) const {
    c10::TypePtr type = schema_.real_type();
    if (type->kind() == TypeKind::OptionalType) {
      if (json.is_null()) return {};
      type = type->castRaw<c10::OptionalType>()->getElementType();
    }
    if (type->kind() == TypeKind::ListType) return list(json, place, *type->castRaw<c10::ListType>());
    return single(json, place, type->kind());
  }

 private:
  [[noreturn]] void refuse(const Json& json, const InputPlace& place, const std::string& expected) const {
    json::detail::wrong(place, json,
                        fmt::format("{} for {} ({})", expected, schema_.name(), schema_.real_type()->str()));
  }

  Argument single(const Json& json, const InputPlace& place, TypeKind kind) const {
    switch (kind) {
      case TypeKind::TensorType:
        return tensor(json, place);
      case TypeKind::NumberType:
        return number(json, place, Argument::Kind::number);
      case TypeKind::IntType:
      case TypeKind::SymIntType: {
        const AffineSize size = integer(json, place);
        if (size.depends_on_b()) return {Argument::Kind::integer, {}, {}, {size}};
        return of(size.plus);
      }
      case TypeKind::FloatType:
        return of(real(json, place));
      case TypeKind::BoolType:
        if (!json.is_boolean()) refuse(json, place, "true or false");
        return of(json.get<bool>());
      case TypeKind::StringType:
        return of(text(json, place, "string"));
      case TypeKind::ScalarTypeType: {
        const std::optional<at::ScalarType> dtype = dtype_named(text(json, place, "dtype"));
        if (!dtype) refuse(json, place, "one of " + all_dtype_names());
        return of(static_cast<std::int64_t>(*dtype));
      }
      case TypeKind::LayoutType:
        if (text(json, place, "layout") != "strided") refuse(json, place, R"({"layout": "strided"})");
        return of(static_cast<std::int64_t>(c10::kStrided));
      case TypeKind::MemoryFormatType:
        return of(static_cast<std::int64_t>(memory_format(json, place)));
      case TypeKind::DeviceObjType:
        if (text(json, place, "device") != "run") refuse(json, place, R"({"device": "run"})");
        return {Argument::Kind::device};
      default:
        refuse(json, place, "null");
    }
  }

  static Argument of(c10::IValue value) { return {Argument::Kind::constant, std::move(value)}; }

  std::string text(const Json& json, const InputPlace& place, const char* key) const {
    const Json* inside = object_with(json, key);
    if (inside == nullptr || !inside->is_string())
      refuse(json, place, fmt::format(R"({{"{}": "..."}})", key));
    return inside->get<std::string>();
  }

  c10::MemoryFormat memory_format(const Json& json, const InputPlace& place) const {
    constexpr std::array kFormats{std::pair{"contiguous", c10::MemoryFormat::Contiguous},
                                  std::pair{"preserve", c10::MemoryFormat::Preserve},
                                  std::pair{"channels_last", c10::MemoryFormat::ChannelsLast},
                                  std::pair{"channels_last_3d", c10::MemoryFormat::ChannelsLast3d}};
    const std::string name = text(json, place, "format");
    for (const auto& [candidate, format] : kFormats) {
      if (name == candidate) return format;
    }
    refuse(json, place, "contiguous, preserve, channels_last or channels_last_3d");
  }

  AffineSize integer(const Json& json, const InputPlace& place) const {
    if (const Json* size = object_with(json, "size")) {
      if (!size->is_array() || size->size() != 2) refuse(json, place, R"({"size": [times, plus]})");
      return {whole((*size)[0], place), whole((*size)[1], place)};
    }
    return {0, whole(json, place)};
  }

  /// Any of 64 bits: the largest stands for "to the end" in slices.
  std::int64_t whole(const Json& json, const InputPlace& place) const {
    const bool fits = json.is_number_integer() &&
                      (!json.is_number_unsigned() ||
                       json.get<std::uint64_t>() <= std::uint64_t{std::numeric_limits<std::int64_t>::max()});
    if (!fits) refuse(json, place, "an integer");
    return json.get<std::int64_t>();
  }

  double real(const Json& json, const InputPlace& place) const {
    if (const Json* name = object_with(json, "float")) {
      if (*name == "inf") return std::numeric_limits<double>::infinity();
      if (*name == "-inf") return -std::numeric_limits<double>::infinity();
      if (*name == "nan") return std::numeric_limits<double>::quiet_NaN();
    }
    if (!json.is_number()) refuse(json, place, "a number");
    return json.get<double>();
  }

  /// `kind`: what it becomes where it depends on b.
  Argument number(const Json& json, const InputPlace& place, Argument::Kind kind) const {
    if (json.is_boolean()) return of(c10::Scalar(json.get<bool>()));
    if (const Json* parts = object_with(json, "complex")) {
      if (!parts->is_array() || parts->size() != 2) refuse(json, place, R"({"complex": [real, imaginary]})");
      return of(c10::Scalar(c10::complex<double>(real((*parts)[0], place), real((*parts)[1], place))));
    }
    if (!json.is_number_integer() && object_with(json, "size") == nullptr) {
      return of(c10::Scalar(real(json, place)));
    }
    const AffineSize size = integer(json, place);
    if (size.depends_on_b()) return {kind, {}, {}, {size}};
    return of(c10::Scalar(size.plus));
  }

  Argument tensor(const Json& json, const InputPlace& place) const {
    if (json.is_string()) return {Argument::Kind::value, {}, {find_(json.get<std::string>(), place)}};
    const Json* scalar = object_with(json, "scalar");
    if (scalar == nullptr) refuse(json, place, R"(a value or {"scalar": ...})");
    Argument argument = number(*scalar, place, Argument::Kind::wrapped);
    if (argument.kind == Argument::Kind::constant) {
      argument.constant = wrapped_number(argument.constant.toScalar());
    }
    return argument;
  }

  Argument list(const Json& json, const InputPlace& place, const c10::ListType& type) const {
    if (!json.is_array()) refuse(json, place, "a list");
    if (json.size() > kLongestList) refuse(json, place, fmt::format("at most {} elements", kLongestList));
    const c10::TypePtr& element = type.getElementType();
    switch (element->kind()) {
      case TypeKind::TensorType:
        return tensors(json, place, Argument::Kind::values);
      case TypeKind::OptionalType:
        return tensors(json, place, Argument::Kind::optional_values);
      case TypeKind::IntType:
      case TypeKind::SymIntType:
        return integers(json, place);
      case TypeKind::BoolType: {
        c10::List<bool> values;
        for (const Json& each : json) {
          if (!each.is_boolean()) refuse(json, place, "true and false");
          values.push_back(each.get<bool>());
        }
        return of(values);
      }
      case TypeKind::FloatType: {
        c10::List<double> values;
        for (const Json& each : json) values.push_back(real(each, place));
        return of(values);
      }
      default:
        refuse(json, place, "null");
    }
  }

  Argument tensors(const Json& json, const InputPlace& place, Argument::Kind kind) const {
    Argument argument{kind};
    for (std::size_t i = 0; i < json.size(); ++i) {
      const InputPlace inside = json::detail::child(place, std::to_string(i));
      if (kind == Argument::Kind::optional_values && json[i].is_null()) {
        argument.values.push_back(kNoValue);
      } else {
        if (!json[i].is_string()) refuse(json[i], inside, "a value");
        argument.values.push_back(find_(json[i].get<std::string>(), inside));
      }
    }
    return argument;
  }

  Argument integers(const Json& json, const InputPlace& place) const {
    Argument argument{Argument::Kind::integers};
    c10::List<std::int64_t> values;
    bool depends = false;
    for (const Json& each : json) {
      argument.sizes.push_back(integer(each, place));
      depends = depends || argument.sizes.back().depends_on_b();
      values.push_back(argument.sizes.back().plus);
    }
    return depends ? argument : of(values);
  }

  const c10::Argument& schema_;
  const FindValue& find_;
};

}  // namespace

at::Tensor wrapped_number(const c10::Scalar& number) {
  at::Tensor tensor = at::scalar_tensor(number, at::TensorOptions().dtype(number.type()));
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

Argument read_argument(const Json& json, const InputPlace& place, const c10::Argument& schema,
                       const FindValue& find) {
  return ArgumentReader(schema, find).read(json, place);
}

}  // namespace stagecraft::captured
