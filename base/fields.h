#pragma once

// How a type that lives in files describes itself, without JSON: the settings of a layer, a data set, a loss.
//
//   struct RmsNormSettings { double epsilon = 1e-5; };
//   void describe(Fields& f, RmsNormSettings& s) {
//     f.optional("epsilon", s.epsilon, "added to the mean square", json::above(0));
//   }
//
// Reading, writing and the JSON Schema all follow from the one description (json.h), so they cannot drift
// apart. Reading is strict: unknown keys, wrong types and values out of range are refused.
//
// Types understood: bool, int, std::int64_t, std::uint64_t, double, std::string, Seconds (JSON has
// milliseconds: end such keys in `_ms`), Id and Bytes (integers from 0, unless the range has another least),
// enums with enum_names, described structs, and of any of them std::optional (absent or null), std::vector
// and std::map<std::string, T>. A describe(auto&, T&) serves as well.

#include "base/describe.h"
#include "base/ids.h"

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

namespace stagecraft {

class AnyNamed;
class Fields;
struct FieldRef;

/// An enum by the names of its values.
struct EnumRef {
  std::span<const char* const> names;
  std::function<std::size_t()> get;
  std::function<void(std::size_t)> set;
};

/// A struct with a describe() of its own.
struct ObjectRef {
  std::function<void(Fields&)> describe;
};

using UseField = std::function<void(FieldRef)>;

struct ListRef {
  std::function<std::size_t()> size;
  std::function<void(std::size_t)> resize;
  std::function<FieldRef(std::size_t)> at;
  std::function<void(const UseField&)> with_default;  ///< calls it with a new element
};

struct MapRef {
  std::function<void()> clear;
  std::function<FieldRef(const std::string&)> at;  ///< makes it where it is missing
  std::function<void(const std::function<void(const std::string&, FieldRef)>&)> each;
  std::function<void(const UseField&)> with_default;
};

struct OptionalRef {
  std::function<bool()> has;
  std::function<void()> reset;
  std::function<FieldRef()> value;  ///< makes one where there is none
  std::function<void(const UseField&)> with_default;
};

struct IdRef {
  std::int32_t* value;
};

/// A raw Json (json.h).
struct RawRef {
  void* json;
};

/// A field, whatever its type. Valid as long as the value it refers to.
struct FieldRef : std::variant<bool*, int*, std::int64_t*, std::uint64_t*, double*, std::string*, Seconds*,
                               Bytes*, IdRef, RawRef, EnumRef, ObjectRef, ListRef, MapRef, OptionalRef> {
  using variant::variant;
  template <class T>
  [[nodiscard]] static FieldRef to(T& value);
};

/// Visits the fields of a description, in its order: a reader, a writer, a schema.
class Fields {
 public:
  virtual ~Fields() = default;

  /// `doc` says what the value is, for the schema. Where the key is absent, the value stays as it is.
  template <class T>
  void optional(const char* key, T& value, const char* doc, const json::Range& range = {}) {
    field(key, FieldRef::to(value), /*required=*/false, doc, range);
  }
  template <class T>
  void required(const char* key, T& value, const char* doc, const json::Range& range = {}) {
    field(key, FieldRef::to(value), /*required=*/true, doc, range);
  }
  /// "format", the number of the form that a file has. Another one than `known` is refused before any other key
  /// is read: what another version of Stagecraft wrote may lack keys, have more, or mean something else by them.
  /// `what`: "checkpoints", of the message.
  template <class T>
  void format(T& number, std::int64_t known, const char* what) {
    require_format(known, what);
    field("format", FieldRef::to(number), /*required=*/true, "of the file",
          json::between(static_cast<double>(known), static_cast<double>(known)));
  }
  /// A condition over several keys; the message points at `key`.
  virtual void require(bool holds, const char* key, const std::string& message) = 0;

  /// The key's value is the name of a registered type (registry.h), whose own keys stand beside it, or, with
  /// `inside`, in the object under that key.
  virtual void registered(const char* key, AnyNamed& value, const char* doc,
                          const char* inside = nullptr) = 0;

 protected:
  virtual void field(const char* key, const FieldRef& value, bool required, const char* doc,
                     const json::Range& range) = 0;
  virtual void require_format(std::int64_t /*known*/, const char* /*what*/) {}
};

namespace detail {
/// Whether T is an Of<...>.
template <class T, template <class...> class Of>
inline constexpr bool is_a = false;
template <template <class...> class Of, class... Parts>
inline constexpr bool is_a<Of<Parts...>, Of> = true;

template <class T>
void with_default(const UseField& use) {
  T value{};
  use(FieldRef::to(value));
}
}  // namespace detail

template <class T>
FieldRef FieldRef::to(T& value) {
  if constexpr (std::is_constructible_v<FieldRef, T*>) {
    return &value;
  } else if constexpr (detail::is_a<T, Id>) {
    return IdRef{&value.value};
  } else if constexpr (std::is_enum_v<T>) {
    return EnumRef{enum_names<T>, [&value] { return static_cast<std::size_t>(value); },
                   [&value](std::size_t at) { value = static_cast<T>(at); }};
  } else if constexpr (detail::is_a<T, std::vector>) {
    return ListRef{[&value] { return value.size(); }, [&value](std::size_t size) { value.resize(size); },
                   [&value](std::size_t at) { return to(value[at]); },
                   detail::with_default<typename T::value_type>};
  } else if constexpr (detail::is_a<T, std::map>) {
    return MapRef{[&value] { value.clear(); }, [&value](const std::string& key) { return to(value[key]); },
                  [&value](const auto& visit) {
                    for (auto& [key, element] : value) visit(key, to(element));
                  },
                  detail::with_default<typename T::mapped_type>};
  } else if constexpr (detail::is_a<T, std::optional>) {
    return OptionalRef{[&value] { return value.has_value(); }, [&value] { value.reset(); },
                       [&value] { return to(value ? *value : value.emplace()); },
                       detail::with_default<typename T::value_type>};
  } else {
    return ObjectRef{[&value](Fields& fields) { describe(fields, value); }};
  }
}
}  // namespace stagecraft
