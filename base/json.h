// JSON in and out, from one description per type (fields.h).
//
// Reading, writing and the JSON Schema all follow from that, so they cannot drift apart. Reading is strict:
// unknown keys, duplicate keys, wrong types, values out of range and non-finite numbers throw InputError with
// the file, the JSON pointer, the value, what was expected and the nearest key. A key that is absent keeps
// the value the struct was constructed with; `required` keys must be there. Raw Json is a field's type too.
#pragma once

#include "base/describe.h"
#include "base/error.h"
#include "base/fields.h"
#include "base/files.h"
#include "base/ids.h"
#include "base/registry.h"

#include <nlohmann/json.hpp>

#include <optional>
#include <string>
#include <vector>

namespace stagecraft {

using Json = nlohmann::ordered_json;  ///< keys stay in the order they were written

template <>
inline FieldRef FieldRef::to(Json& value) {
  return RawRef{&value};
}

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
[[noreturn]] void wrong(const InputPlace& place, const Json& value, const std::string& expected);
[[nodiscard]] InputPlace child(const InputPlace& place, const std::string& key);

void read_field(const Json& json, const InputPlace& place, const FieldRef& field, const Range& range);
[[nodiscard]] Json written(const FieldRef& field);
[[nodiscard]] Json schema_for(const FieldRef& field, const Range& range);
}  // namespace detail

template <class T>
void read_value(const Json& json, const InputPlace& place, T& value, const Range& range) {
  detail::read_field(json, place, FieldRef::to(value), range);
}

/// Every key, defaults included, in the order of the description; what is optional and absent is left out.
template <class T>
[[nodiscard]] Json write(T value) {  // a copy: describe takes a mutable reference for the reader's sake
  return detail::written(FieldRef::to(value));
}

/// JSON Schema 2020-12: types, bounds, defaults and the doc strings as descriptions.
template <class T>
[[nodiscard]] Json schema_of() {
  T value{};
  return detail::schema_for(FieldRef::to(value), Range{});
}

/// Describes an Id that is absent where it is "none".
template <class Kind>
void optional_id(Fields& v, const char* key, Id<Kind>& id, const char* doc) {
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
