#include "base/json.h"

#include "base/json_syntax.h"
#include "base/nearest.h"
#include "base/utf8.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

namespace stagecraft {

void write_json_file(const std::string& path, const Json& json, Links links) {
  write_file_atomically(path, json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n", links);
}

namespace json {
namespace {

// Nothing of ours comes near these. Deep values overflow the stack of whoever walks them, and each takes
// many times the memory that it takes in the file.
constexpr std::size_t kMostNested = 100;
constexpr std::size_t kMostKeys = 10'000;
constexpr std::int64_t kMostValues = 30'000'000;
/// Parts of a pointer in a message.
constexpr std::size_t kMostShown = 8;

/// RFC 6901: "~" and "/" inside a key are escaped.
std::string escaped(const std::string& key) {
  std::string out;
  for (const char c : key) {
    if (c == '~') {
      out += "~0";
    } else if (c == '/') {
      out += "~1";
    } else {
      out += c;
    }
  }
  return out;
}

std::string shortened(const std::string& text, std::size_t most = 60) {
  return text.size() <= most ? text : fmt::format("{}...", beginning_of(text, most - 3));
}

std::string quoted_list(const std::vector<std::string>& names) {
  return fmt::format("\"{}\"", fmt::join(names, "\", \""));
}

/// Builds the value event by event. nlohmann's own parser with a callback looks through the whole parent at
/// the end of every child: minutes for a long array.
class Builder : public nlohmann::json_sax<Json> {
 public:
  explicit Builder(const std::string& file) : file_(file) {}
  Json take() { return std::move(root_); }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t& /*text*/) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t& /*value*/) override { return false; }
  bool start_object(std::size_t /*elements*/) override {
    keys_.emplace_back();
    return open(Json::object());
  }
  bool start_array(std::size_t /*elements*/) override { return open(Json::array()); }
  bool end_object() override {
    keys_.pop_back();
    return end_array();
  }
  bool end_array() override {
    open_.pop_back();
    return true;
  }
  bool key(string_t& name) override {
    if (!keys_.back().insert(name).second) {
      const std::string twice = fmt::format("the key {} appears twice in one object", brief(Json(name)));
      key_ = std::move(name);
      refuse_next(twice);
    }
    if (keys_.back().size() > kMostKeys) refuse(fmt::format("an object has more than {} keys", kMostKeys));
    key_ = std::move(name);
    return true;
  }
  /// Reading ends; what is wrong is said by who has the whole text.
  bool parse_error(std::size_t /*at*/, const std::string& token, const Json::exception& error) override {
    if (dynamic_cast<const Json::out_of_range*>(&error) != nullptr)
      refuse_next(fmt::format("expected a number below 1.8e308, found {}", shortened(token)));
    return false;
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const { throw InputError({file_, ""}, what); }
  /// Of what stands next in the newest object or array.
  [[noreturn]] void refuse_next(const std::string& what) const {
    InputPlace place{file_, ""};
    for (std::size_t i = 0; i < open_.size(); ++i) {
      const bool newest = i + 1 == open_.size();
      if (i == kMostShown) {
        place.pointer += "/...";
        break;
      }
      if (open_[i]->is_object()) {
        const auto& entries = open_[i]->get_ref<const Json::object_t&>();
        place = detail::child(place, shortened(newest ? key_ : entries.back().first));
      } else {
        place = detail::child(place, std::to_string(open_[i]->size() - (newest ? 0 : 1)));
      }
    }
    throw InputError(place, what);
  }

  Json* place(Json value) {
    if (++values_ > kMostValues) {
      refuse(fmt::format("has more than {} values; a schedule of that size is written as text", kMostValues));
    }
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Json& parent = *open_.back();
    if (parent.is_object()) {
      // Its operator[] looks through all keys for this one, and `keys_` knows already that it is new.
      auto& entries = parent.get_ref<Json::object_t&>();
      entries.emplace_back(std::move(key_), std::move(value));
      return &entries.back().second;
    }
    parent.push_back(std::move(value));
    return &parent.back();
  }
  bool add(Json value) {
    place(std::move(value));
    return true;
  }
  bool open(Json value) {
    if (open_.size() == kMostNested) refuse_next(fmt::format("is nested more than {} deep", kMostNested));
    open_.push_back(place(std::move(value)));
    return true;
  }

  const std::string& file_;
  Json root_;
  std::vector<Json*> open_;                  // no parent grows while a child is open
  std::vector<std::set<std::string>> keys_;  // of the objects that are open
  std::string key_;
  std::int64_t values_ = 0;
};

}  // namespace

std::string brief(const Json& value) {
  // Bad UTF-8 in a string must not turn an error message into another error.
  return shortened(value.dump(-1, ' ', false, Json::error_handler_t::replace));
}

Json parse_text(const std::string& text, const std::string& file) {
  // nlohmann's lexer takes a NUL for the end of the text, whatever stands behind it.
  const bool whole = text.find('\0') == std::string::npos;
  Builder builder(file);
  try {
    if (whole && Json::sax_parse(text, &builder, Json::input_format_t::json, /*strict=*/true,
                                 /*ignore_comments=*/true)) {
      return builder.take();
    }
  } catch (const Json::out_of_range& error) {  // of an exponent that no reader holds
    throw InputError({file, ""}, "expected numbers below 1.8e308");
  }
  throw InputError({file, ""}, "not valid JSON: " + syntax_error(text));
}

Json parse_file(const std::string& path) {
  const std::string text = stagecraft::read_file(path);
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) {
    throw InputError({path, ""}, "is empty; expected a JSON document");
  }
  return parse_text(text, path);
}

void detail::wrong(const InputPlace& place, const Json& value, const std::string& expected) {
  throw InputError(place, fmt::format("expected {}, found {}", expected, brief(value)));
}

InputPlace detail::child(const InputPlace& place, const std::string& key) {
  return InputPlace{place.file, place.pointer + "/" + escaped(key)};
}

namespace {

using detail::child;
using detail::wrong;

[[noreturn]] void unknown_name(const InputPlace& place, const Json& value,
                               const std::vector<std::string>& names) {
  const std::string hint = value.is_string() ? did_you_mean(value.get<std::string>(), names) : "";
  throw InputError(place,
                   fmt::format("expected one of {}, found {}{}", quoted_list(names), brief(value), hint));
}

void check_range(const InputPlace& place, const Json& value, double number, const Range& range,
                 const char* of = "") {
  if (!range.holds(number)) wrong(place, value, of + range.text());
}

/// What both hold.
Range within(const Range& range, const Range& possible) {
  Range both = possible;
  if (range.min >= possible.min) both.min = range.min, both.open_min = range.open_min;
  if (range.max <= possible.max) both.max = range.max, both.open_max = range.open_max;
  return both;
}

/// The same, with 0 as the least where it has none.
Range from_zero(Range range) {
  if (!std::isfinite(range.min)) range.min = 0;
  return range;
}

std::vector<std::string> names_of(const EnumRef& field) { return {field.names.begin(), field.names.end()}; }

/// One JSON object against one description.
class Reader final : public Fields {
 public:
  Reader(const Json& object, InputPlace place) : object_(object), place_(std::move(place)) {
    if (!object.is_object()) wrong(place_, object, "an object");
  }

  void registered(const char* key, AnyNamed& value, const char* /*doc*/, const char* inside) override {
    const Json* name = find(key);
    if (name == nullptr) missing(key);
    const auto entry =
        name->is_string() ? value.registry().find(name->get_ref<const std::string&>()) : nullptr;
    if (entry == nullptr) unknown_name(child(place_, key), *name, value.registry().names());
    const std::shared_ptr<void> settings = value.settings_for(*entry);
    if (inside == nullptr) {
      entry->describe(*this, settings.get());
    } else {
      static const Json empty = Json::object();
      const Json* object = find(inside);
      Reader reader(object != nullptr ? *object : empty, child(place_, inside));
      entry->describe(reader, settings.get());
      reader.finish();
    }
    value.set(entry, settings);
  }

  /// The first that does not hold is said in the end: a slip in a key may be behind it.
  void require(bool holds, const char* key, const std::string& message) override {
    if (!holds && !unmet_) unmet_.emplace(*key == '\0' ? place_ : child(place_, key), message);
  }

  /// Refuses keys nobody asked for, and what does not hold.
  void finish() const {
    for (const auto& [key, value] : object_.items()) {
      if (std::ranges::find(known_, key) != known_.end()) continue;
      const std::string hint = did_you_mean(key, known_);
      constexpr std::size_t kLongestShown = 200;
      const InputPlace place = child(place_, shortened(key, kLongestShown));
      const InputError unknown(
          place, fmt::format("unknown key{}", hint.empty() ? "; known here: " + quoted_list(known_) : hint));
      throw UnknownKeyError(hint.empty() && unmet_ ? *unmet_ : unknown, place, key);
    }
    if (unmet_) throw InputError(*unmet_);
  }

 private:
  void field(const char* key, const FieldRef& value, bool required, const char* /*doc*/,
             const Range& range) override {
    const Json* found = find(key);
    if (found == nullptr && required) missing(key);
    if (found != nullptr) detail::read_field(*found, child(place_, key), value, range);
  }

  void require_format(std::int64_t known, const char* what) override {
    const auto found = object_.find("format");
    if (found == object_.end() || !found->is_number_integer() || *found == known) return;
    throw InputError(child(place_, "format"),
                     fmt::format("{}, of {} Stagecraft; this one reads {} of format {}", brief(*found),
                                 *found > known ? "a newer" : "an older", what, known));
  }

  const Json* find(const char* key) {
    known_.emplace_back(key);
    const auto found = object_.find(key);
    return found == object_.end() ? nullptr : &*found;
  }

  [[noreturn]] void missing(const char* key) const {
    std::vector<std::string> present;
    for (const auto& [name, value] : object_.items()) {
      if (std::ranges::find(known_, name) == known_.end()) present.push_back(name);
    }
    const std::string similar = nearest(key, present);
    const std::string hint = similar.empty() ? "" : fmt::format("; \"{}\" is there, is it a slip?", similar);
    throw InputError(place_, fmt::format("the key \"{}\" is missing{}", key, hint));
  }

  const Json& object_;
  InputPlace place_;
  std::vector<std::string> known_;
  std::optional<InputError> unmet_;  ///< the first requirement that does not hold
};

class Writer final : public Fields {
 public:
  void registered(const char* key, AnyNamed& value, const char* /*doc*/, const char* inside) override {
    object_[key] = value.name();
    const std::shared_ptr<void> settings = value.settings_for(value.entry());
    if (inside == nullptr) {
      value.entry().describe(*this, settings.get());
    } else {
      Writer writer;
      value.entry().describe(writer, settings.get());
      object_[inside] = writer.take();
    }
  }
  void require(bool, const char*, const std::string&) override {}
  [[nodiscard]] Json take() { return std::move(object_); }

 private:
  void field(const char* key, const FieldRef& value, bool required, const char* /*doc*/,
             const Range& /*range*/) override {
    const auto* optional = std::get_if<OptionalRef>(&value);
    if (required || optional == nullptr || optional->has()) object_[key] = detail::written(value);
  }

  Json object_ = Json::object();
};

class SchemaWriter final : public Fields {
 public:
  void registered(const char* key, AnyNamed& value, const char* doc, const char* inside) override {
    if (value.registry().names_only()) {
      properties_[key] = Json{{"enum", value.registry().names()}, {"description", doc}};
      required_.emplace_back(key);
      return;
    }
    for (const auto& entry : value.registry().entries()) {
      SchemaWriter writer;
      writer.properties_[key] =
          Json{{"const", entry->name}, {"description", entry->doc.empty() ? doc : entry->doc}};
      writer.required_.emplace_back(key);
      SchemaWriter nested;
      entry->describe(inside == nullptr ? writer : nested, entry->copy(nullptr).get());
      if (inside != nullptr) writer.properties_[inside] = nested.take();
      alternatives_.push_back(std::move(writer));
    }
  }
  void require(bool, const char*, const std::string&) override {}

  [[nodiscard]] Json take() const {
    const auto object = [](const Json& properties, const std::vector<std::string>& required) {
      Json schema;
      schema["type"] = "object";
      schema["properties"] = properties;
      if (!required.empty()) schema["required"] = required;
      schema["additionalProperties"] = false;
      return schema;
    };
    if (alternatives_.empty()) return object(properties_, required_);
    Json schema;
    schema["oneOf"] = Json::array();
    for (const SchemaWriter& alternative : alternatives_) {
      Json properties = alternative.properties_;
      properties.update(properties_);
      std::vector<std::string> required = alternative.required_;
      required.insert(required.end(), required_.begin(), required_.end());
      schema["oneOf"].push_back(object(properties, required));
    }
    return schema;
  }

 private:
  void field(const char* key, const FieldRef& value, bool required, const char* doc,
             const Range& range) override {
    properties_[key] = detail::schema_for(value, range);
    properties_[key]["description"] = doc;
    if (required) {
      required_.emplace_back(key);
    } else if (!std::holds_alternative<OptionalRef>(value)) {
      properties_[key]["default"] = detail::written(value);
    }
  }

  Json properties_ = Json::object();
  std::vector<std::string> required_;
  std::vector<SchemaWriter> alternatives_;
};

template <class T>
void read_scalar(const Json& json, const InputPlace& place, T& value, const Range& range) {
  if constexpr (std::is_same_v<T, bool>) {
    if (!json.is_boolean()) wrong(place, json, "true or false");
    value = json.get<bool>();
  } else if constexpr (std::is_integral_v<T>) {
    const double number = json.is_number() ? json.get<double>() : 0.5;
    // To JSON 8e9 is as good an integer as 8000000000, and programs write it.
    if (number != std::trunc(number)) wrong(place, json, "an integer");
    // Compared as doubles first: a JSON integer may not fit any integer type we have.
    using Limits = std::numeric_limits<T>;
    const Range possible{static_cast<double>(Limits::min()), static_cast<double>(Limits::max()), false,
                         sizeof(T) == 8};
    check_range(place, json, number, range);
    if (!possible.holds(number)) wrong(place, json, within(range, possible).text());
    value = json.is_number_integer() ? json.get<T>() : static_cast<T>(number);
  } else if constexpr (std::is_same_v<T, double>) {
    if (!json.is_number() || !std::isfinite(json.get<double>())) wrong(place, json, "a finite number");
    check_range(place, json, json.get<double>(), range);
    value = json.get<double>();
  } else if constexpr (std::is_same_v<T, std::string>) {
    if (!json.is_string()) wrong(place, json, "a string");
    value = json.get<std::string>();
    check_range(place, json, static_cast<double>(value.size()), range, "a length of ");
  } else if constexpr (std::is_same_v<T, Bytes>) {
    read_scalar(json, place, value.value, from_zero(range));
  } else {
    static_assert(std::is_same_v<T, Seconds>);
    double ms = 0;
    read_scalar(json, place, ms, range);
    value = Seconds{ms / 1e3};
  }
}

template <class T>
Json scalar_schema(const Range& range) {
  Json schema = Json::object();
  if constexpr (std::is_same_v<T, bool>) {
    schema["type"] = "boolean";
  } else if constexpr (std::is_same_v<T, std::string>) {
    schema["type"] = "string";
    if (std::isfinite(range.min)) schema["minLength"] = static_cast<std::int64_t>(range.min);
  } else if constexpr (std::is_same_v<T, Bytes>) {
    return scalar_schema<std::int64_t>(from_zero(range));
  } else {
    schema["type"] = std::is_integral_v<T> ? "integer" : "number";
    if (std::isfinite(range.min)) schema[range.open_min ? "exclusiveMinimum" : "minimum"] = range.min;
    if (std::isfinite(range.max)) schema[range.open_max ? "exclusiveMaximum" : "maximum"] = range.max;
  }
  return schema;
}

const FieldRef::variant& variant_of(const FieldRef& field) { return field; }

}  // namespace

void detail::read_field(const Json& json, const InputPlace& place, const FieldRef& field,
                        const Range& range) {
  const auto read = [&]<class T>(const T& to) {
    if constexpr (std::is_pointer_v<T>) {
      read_scalar(json, place, *to, range);
    } else if constexpr (std::is_same_v<T, IdRef>) {
      read_scalar(json, place, *to.value, from_zero(range));
    } else if constexpr (std::is_same_v<T, RawRef>) {
      *static_cast<Json*>(to.json) = json;
    } else if constexpr (std::is_same_v<T, EnumRef>) {
      const auto named =
          json.is_string() ? std::ranges::find(to.names, json.get<std::string>()) : to.names.end();
      if (named == to.names.end()) unknown_name(place, json, names_of(to));
      to.set(static_cast<std::size_t>(named - to.names.begin()));
    } else if constexpr (std::is_same_v<T, ObjectRef>) {
      Reader reader(json, place);
      to.describe(reader);
      reader.finish();
    } else if constexpr (std::is_same_v<T, ListRef>) {
      if (!json.is_array()) wrong(place, json, "an array");
      check_range(place, json, static_cast<double>(json.size()), range, "a length of ");
      to.resize(0);
      to.resize(json.size());
      for (std::size_t i = 0; i < json.size(); ++i) {
        read_field(json[i], child(place, std::to_string(i)), to.at(i), Range{});
      }
    } else if constexpr (std::is_same_v<T, MapRef>) {
      if (!json.is_object()) wrong(place, json, "an object");
      to.clear();
      for (const auto& [key, element] : json.items()) read_field(element, child(place, key), to.at(key), {});
    } else {
      to.reset();
      if (!json.is_null()) read_field(json, place, to.value(), range);
    }
  };
  std::visit(read, variant_of(field));
}

Json detail::written(const FieldRef& field) {
  const auto write = []<class T>(const T& from) -> Json {
    if constexpr (std::is_same_v<T, Bytes*>) {
      return from->value;
    } else if constexpr (std::is_same_v<T, Seconds*>) {
      return from->value * 1e3;
    } else if constexpr (std::is_pointer_v<T>) {
      return *from;
    } else if constexpr (std::is_same_v<T, IdRef>) {
      return *from.value;
    } else if constexpr (std::is_same_v<T, RawRef>) {
      return *static_cast<const Json*>(from.json);
    } else if constexpr (std::is_same_v<T, EnumRef>) {
      return from.get() < from.names.size() ? from.names[from.get()] : "?";
    } else if constexpr (std::is_same_v<T, ObjectRef>) {
      Writer writer;
      from.describe(writer);
      return writer.take();
    } else if constexpr (std::is_same_v<T, ListRef>) {
      Json array = Json::array();
      for (std::size_t i = 0; i < from.size(); ++i) array.push_back(written(from.at(i)));
      return array;
    } else if constexpr (std::is_same_v<T, MapRef>) {
      Json object = Json::object();
      from.each([&](const std::string& key, const FieldRef& element) { object[key] = written(element); });
      return object;
    } else {
      return from.has() ? written(from.value()) : Json();
    }
  };
  return std::visit(write, variant_of(field));
}

Json detail::schema_for(const FieldRef& field, const Range& range) {
  const auto of_type = [&]<class T>(const T& of) -> Json {
    Json schema = Json::object();
    const auto nested = [&](Json& to, const Range& within) {
      return [&to, within](const FieldRef& element) { to = schema_for(element, within); };
    };
    if constexpr (std::is_pointer_v<T>) {
      return scalar_schema<std::remove_pointer_t<T>>(range);
    } else if constexpr (std::is_same_v<T, IdRef>) {
      return scalar_schema<std::int32_t>(from_zero(range));
    } else if constexpr (std::is_same_v<T, EnumRef>) {
      schema["enum"] = names_of(of);
    } else if constexpr (std::is_same_v<T, ObjectRef>) {
      SchemaWriter writer;
      of.describe(writer);
      return writer.take();
    } else if constexpr (std::is_same_v<T, ListRef>) {
      schema["type"] = "array";
      of.with_default(nested(schema["items"], {}));
      if (std::isfinite(range.min)) schema["minItems"] = static_cast<std::int64_t>(range.min);
      if (std::isfinite(range.max)) schema["maxItems"] = static_cast<std::int64_t>(range.max);
    } else if constexpr (std::is_same_v<T, MapRef>) {
      schema["type"] = "object";
      of.with_default(nested(schema["additionalProperties"], {}));
    } else if constexpr (std::is_same_v<T, OptionalRef>) {
      schema["anyOf"] = Json::array({Json(), Json{{"type", "null"}}});
      of.with_default(nested(schema["anyOf"][0], range));
    }
    return schema;
  };
  return std::visit(of_type, variant_of(field));
}

}  // namespace json
}  // namespace stagecraft
