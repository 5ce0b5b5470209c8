#pragma once

// JSON in and out, from one description per type.
//
// A struct that lives in a file describes itself once:
//
//   template <class V> void describe(V& v, Link& link) {
//     v.required("latency_ms", link.latency, "one-way time of an empty message", json::at_least(0));
//     v.optional("name", link.name, "shown in tables");
//   }
//
// Reading, writing and the JSON Schema all follow from that, so they cannot drift apart. Reading is strict:
// unknown keys, duplicate keys, wrong types, values out of range and non-finite numbers throw InputError with
// the file, the JSON pointer, the value, what was expected and the nearest key. A key that is absent keeps
// the value the struct was constructed with; `required` keys must be there.
//
// Types understood: bool, integers, double, std::string, enums with enum_names, Id and Bytes (integers
// from 0, unless the range has another least), Seconds (milliseconds; end such keys in `_ms`), std::optional
// (absent or null), std::vector, std::map<std::string, T>, raw Json, described structs, and one of the
// registered types (registry.h) through `registered`. A describe(Fields&, T&) serves as well (fields.h).

#include "stagecraft/base/describe.h"
#include "stagecraft/base/error.h"
#include "stagecraft/base/fields.h"
#include "stagecraft/base/files.h"
#include "stagecraft/base/ids.h"
#include "stagecraft/base/registry.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace stagecraft {

using Json = nlohmann::ordered_json;  ///< keys stay in the order they were written

/// Pretty-printed (two spaces), with a newline at the end, through write_file_atomically.
void write_json_file(const std::string& path, const Json& json, Links links = Links::follow);

namespace json {

/// Parses a whole file (// and /* */ comments allowed). Throws InputError: missing, unreadable, malformed,
/// duplicate keys.
[[nodiscard]] Json parse_file(const std::string& path);
/// Parses text; `file` names it in messages.
[[nodiscard]] Json parse_text(const std::string& text, const std::string& file);
/// The value as shown in messages: compact, cut after 60 characters.
[[nodiscard]] std::string brief(const Json& value);

namespace detail {

/// Whether T is an Of<...>.
template <class T, template <class...> class Of>
inline constexpr bool is_a = false;
template <template <class...> class Of, class... Parts>
inline constexpr bool is_a<Of<Parts...>, Of> = true;

[[noreturn]] void wrong(const InputPlace& place, const Json& value, const std::string& expected);
[[noreturn]] void unknown_name(const InputPlace& place, const Json& value,
                               const std::vector<std::string>& names);
[[nodiscard]] InputPlace child(const InputPlace& place, const std::string& key);
void check_range(const InputPlace& place, const Json& value, double number, const Range& range,
                 const char* of);

/// The same, with 0 as the least where it has none.
[[nodiscard]] inline Range from_zero(Range range) {
  if (!std::isfinite(range.min)) range.min = 0;
  return range;
}

}  // namespace detail

class Reader;
class Writer;
class SchemaWriter;

template <class T>
concept Described = std::is_class_v<T> && requires(Reader& reader, T& value) {
  describe(reader, value);
};

template <class T>
void read_value(const Json& json, const InputPlace& place, T& value, const Range& range);
template <class T>
[[nodiscard]] Json write(const T& value);
template <class T>
[[nodiscard]] Json schema_of(const Range& range = {});

/// The reading visitor: one JSON object against one description.
class Reader final : public Fields {
 public:
  Reader(const Json& object, InputPlace place);

  template <class T>
  void required(const char* key, T& value, const char* /*doc*/, Range range = {}) {
    const Json* found = find(key);
    if (found == nullptr) missing(key);
    read_value(*found, detail::child(place_, key), value, range);
  }
  template <class T>
  void optional(const char* key, T& value, const char* /*doc*/, Range range = {}) {
    if (const Json* found = find(key)) read_value(*found, detail::child(place_, key), value, range);
  }
  void registered(const char* key, AnyNamed& value, const char* doc, const char* inside = nullptr) override;
  /// A condition over several keys; `key` is where the message points. The first that does not hold is said
  /// in the end: a slip in a key may be behind it.
  void require(bool holds, const char* key, const std::string& message) override;
  /// Refuses keys nobody asked for, and what does not hold. Called by `read`.
  void finish() const;

 private:
  void field(const char* key, const FieldRef& value, bool required, const char* doc,
             const Range& range) override;
  const Json* find(const char* key);
  [[noreturn]] void missing(const char* key) const;

  const Json& object_;
  InputPlace place_;
  std::vector<std::string> known_;
  std::optional<InputError> unmet_;  ///< the first requirement that does not hold
};

/// The writing visitor: every key, defaults included, in the order of the description.
class Writer final : public Fields {
 public:
  template <class T>
  void required(const char* key, const T& value, const char* /*doc*/, Range = {}) {
    object_[key] = json::write(value);
  }
  template <class T>
  void optional(const char* key, const T& value, const char* doc, Range = {}) {
    if constexpr (detail::is_a<T, std::optional>) {
      if (!value) return;
    }
    required(key, value, doc);
  }
  void registered(const char* key, AnyNamed& value, const char* doc, const char* inside = nullptr) override;
  void require(bool, const char*, const std::string&) override {}
  [[nodiscard]] Json take() { return std::move(object_); }

 private:
  void field(const char* key, const FieldRef& value, bool required, const char* doc,
             const Range& range) override;

  Json object_ = Json::object();
};

/// The schema visitor (JSON Schema 2020-12): types, bounds, defaults and the doc strings as descriptions.
class SchemaWriter final : public Fields {
 public:
  template <class T>
  void required(const char* key, const T&, const char* doc, Range range = {}) {
    properties_[key] = schema_of<T>(range);
    properties_[key]["description"] = doc;
    required_.push_back(key);
  }
  template <class T>
  void optional(const char* key, const T& value, const char* doc, Range range = {}) {
    properties_[key] = schema_of<T>(range);
    properties_[key]["description"] = doc;
    if constexpr (!detail::is_a<T, std::optional>) properties_[key]["default"] = json::write(value);
  }
  void registered(const char* key, AnyNamed& value, const char* doc, const char* inside = nullptr) override;
  void require(bool, const char*, const std::string&) override {}
  [[nodiscard]] Json take() const;

 private:
  void field(const char* key, const FieldRef& value, bool required, const char* doc,
             const Range& range) override;

  Json properties_ = Json::object();
  std::vector<std::string> required_;
  std::vector<SchemaWriter> alternatives_;
};

template <class T>
void read_value(const Json& json, const InputPlace& place, T& value, const Range& range) {
  if constexpr (std::is_same_v<T, bool>) {
    if (!json.is_boolean()) detail::wrong(place, json, "true or false");
    value = json.get<bool>();
  } else if constexpr (std::is_integral_v<T>) {
    if (!json.is_number_integer()) detail::wrong(place, json, "an integer");
    // Compared as doubles first: a JSON integer may not fit any integer type we have.
    detail::check_range(place, json, json.get<double>(), range, "");
    detail::check_range(place, json, json.get<double>(),
                        Range{static_cast<double>(std::numeric_limits<T>::min()),
                              static_cast<double>(std::numeric_limits<T>::max()), false, sizeof(T) == 8},
                        "");
    value = json.get<T>();
  } else if constexpr (std::is_floating_point_v<T>) {
    if (!json.is_number() || !std::isfinite(json.get<double>()))
      detail::wrong(place, json, "a finite number");
    detail::check_range(place, json, json.get<double>(), range, "");
    value = json.get<T>();
  } else if constexpr (std::is_same_v<T, std::string>) {
    if (!json.is_string()) detail::wrong(place, json, "a string");
    value = json.get<std::string>();
    detail::check_range(place, json, static_cast<double>(value.size()), range, "a length of ");
  } else if constexpr (std::is_same_v<T, Json>) {
    value = json;
  } else if constexpr (detail::is_a<T, Id> || std::is_same_v<T, Bytes>) {
    read_value(json, place, value.value, detail::from_zero(range));
  } else if constexpr (std::is_same_v<T, Seconds>) {
    double ms = 0;
    read_value(json, place, ms, range);
    value = Seconds{ms / 1e3};
  } else if constexpr (std::is_enum_v<T>) {
    const auto named = json.is_string() ? enum_named<T>(json.get_ref<const std::string&>()) : std::nullopt;
    if (!named) detail::unknown_name(place, json, {enum_names<T>.begin(), enum_names<T>.end()});
    value = *named;
  } else if constexpr (detail::is_a<T, std::optional>) {
    if (json.is_null()) {
      value.reset();
    } else {
      read_value(json, place, value.emplace(), range);
    }
  } else if constexpr (detail::is_a<T, std::vector>) {
    if (!json.is_array()) detail::wrong(place, json, "an array");
    detail::check_range(place, json, static_cast<double>(json.size()), range, "a length of ");
    value.clear();
    for (std::size_t i = 0; i < json.size(); ++i) {
      typename T::value_type element{};
      read_value(json[i], detail::child(place, std::to_string(i)), element, Range{});
      value.push_back(std::move(element));
    }
  } else if constexpr (detail::is_a<T, std::map>) {
    if (!json.is_object()) detail::wrong(place, json, "an object");
    value.clear();
    for (const auto& [key, element] : json.items()) {
      read_value(element, detail::child(place, key), value[key], Range{});
    }
  } else {
    static_assert(Described<T>, "give the type a describe()");
    Reader reader(json, place);
    describe(reader, value);
    reader.finish();
  }
}

template <class T>
Json write(const T& value) {
  if constexpr (detail::is_a<T, Id> || std::is_same_v<T, Bytes>) {
    return value.value;
  } else if constexpr (std::is_same_v<T, Seconds>) {
    return value.value * 1e3;
  } else if constexpr (std::is_enum_v<T>) {
    return enum_name(value);
  } else if constexpr (detail::is_a<T, std::optional>) {
    return value ? json::write(*value) : Json();
  } else if constexpr (detail::is_a<T, std::vector>) {
    Json array = Json::array();
    for (const auto& element : value) array.push_back(json::write<typename T::value_type>(element));
    return array;
  } else if constexpr (detail::is_a<T, std::map>) {
    Json object = Json::object();
    for (const auto& [key, element] : value) object[key] = json::write(element);
    return object;
  } else if constexpr (Described<T>) {
    Writer writer;
    T copy = value;  // describe takes a mutable reference for the reader's sake
    describe(writer, copy);
    return writer.take();
  } else {
    return value;
  }
}

template <class T>
Json schema_of(const Range& range) {
  Json schema = Json::object();
  const bool has_min = std::isfinite(range.min);
  const bool has_max = std::isfinite(range.max);
  if constexpr (std::is_same_v<T, bool>) {
    schema["type"] = "boolean";
  } else if constexpr (detail::is_a<T, Id> || std::is_same_v<T, Bytes>) {
    schema = schema_of<std::int64_t>(detail::from_zero(range));
  } else if constexpr (std::is_arithmetic_v<T> || std::is_same_v<T, Seconds>) {
    schema["type"] = std::is_integral_v<T> ? "integer" : "number";
    if (has_min) schema[range.open_min ? "exclusiveMinimum" : "minimum"] = range.min;
    if (has_max) schema[range.open_max ? "exclusiveMaximum" : "maximum"] = range.max;
  } else if constexpr (std::is_same_v<T, std::string>) {
    schema["type"] = "string";
    if (has_min) schema["minLength"] = static_cast<std::int64_t>(range.min);
  } else if constexpr (std::is_enum_v<T>) {
    schema["enum"] = enum_names<T>;
  } else if constexpr (detail::is_a<T, std::optional>) {
    schema["anyOf"] = Json::array({schema_of<typename T::value_type>(range), Json{{"type", "null"}}});
  } else if constexpr (detail::is_a<T, std::vector>) {
    schema["type"] = "array";
    schema["items"] = schema_of<typename T::value_type>();
    if (has_min) schema["minItems"] = static_cast<std::int64_t>(range.min);
    if (has_max) schema["maxItems"] = static_cast<std::int64_t>(range.max);
  } else if constexpr (detail::is_a<T, std::map>) {
    schema["type"] = "object";
    schema["additionalProperties"] = schema_of<typename T::mapped_type>();
  } else if constexpr (Described<T>) {
    SchemaWriter writer;
    T value{};
    describe(writer, value);
    schema = writer.take();
  }
  return schema;
}

/// Describes an Id that is absent where it is "none".
template <class V, class Kind>
void optional_id(V& v, const char* key, Id<Kind>& id, const char* doc) {
  std::optional<Id<Kind>> known = id.valid() ? std::optional(id) : std::nullopt;
  v.optional(key, known, doc);
  id = known.value_or(Id<Kind>{});
}

/// Reads a described value; `place.file` names the source in messages.
template <class T>
[[nodiscard]] T read(const Json& json, const InputPlace& place) {
  T value{};
  read_value(json, place, value, Range{});
  return value;
}
template <class T>
[[nodiscard]] T read_file(const std::string& path) {
  return read<T>(parse_file(path), InputPlace{path, ""});
}

}  // namespace json
}  // namespace stagecraft
