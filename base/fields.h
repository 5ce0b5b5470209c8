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
// milliseconds: end such keys in `_ms`), Bytes, enums with enum_names, described structs, and std::vector of
// any of them.

#include "stagecraft/base/describe.h"
#include "stagecraft/base/ids.h"

#include <cstdint>
#include <functional>
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
  std::vector<std::string> names;
  std::function<std::size_t()> get;
  std::function<void(std::size_t)> set;
};

/// A struct with a describe() of its own.
struct ObjectRef {
  std::function<void(Fields&)> describe;
};

struct ListRef {
  std::function<std::size_t()> size;
  std::function<void(std::size_t)> resize;
  std::function<FieldRef(std::size_t)> at;
  std::function<void(const std::function<void(FieldRef)>&)> with_default;  ///< calls it with a new element
};

/// A field, whatever its type. Valid as long as the value it refers to.
struct FieldRef : std::variant<bool*, int*, std::int64_t*, std::uint64_t*, double*, std::string*, Seconds*,
                               Bytes*, EnumRef, ObjectRef, ListRef> {
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
  /// A condition over several keys; the message points at `key`.
  virtual void require(bool holds, const char* key, const std::string& message) = 0;

  /// The key's value is the name of a registered type (registry.h), whose own keys stand beside it, or, with
  /// `inside`, in the object under that key.
  virtual void registered(const char* key, AnyNamed& value, const char* doc,
                          const char* inside = nullptr) = 0;

 protected:
  virtual void field(const char* key, const FieldRef& value, bool required, const char* doc,
                     const json::Range& range) = 0;
};

namespace detail {
template <class T>
inline constexpr bool is_vector = false;
template <class T>
inline constexpr bool is_vector<std::vector<T>> = true;
}  // namespace detail

template <class T>
FieldRef FieldRef::to(T& value) {
  if constexpr (std::is_constructible_v<FieldRef, T*>) {
    return &value;
  } else if constexpr (std::is_enum_v<T>) {
    return EnumRef{{enum_names<T>.begin(), enum_names<T>.end()},
                   [&value] { return static_cast<std::size_t>(value); },
                   [&value](std::size_t at) { value = static_cast<T>(at); }};
  } else if constexpr (detail::is_vector<T>) {
    return ListRef{[&value] { return value.size(); }, [&value](std::size_t size) { value.resize(size); },
                   [&value](std::size_t at) { return to(value[at]); },
                   [](const std::function<void(FieldRef)>& use) {
                     typename T::value_type element{};
                     use(to(element));
                   }};
  } else {
    return ObjectRef{[&value](Fields& fields) { describe(fields, value); }};
  }
}

}  // namespace stagecraft
