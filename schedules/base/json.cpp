#include "schedules/base/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>

namespace stagecraft::json {
namespace {

// Nothing of ours comes near either. Deep values overflow the stack of whoever walks them, and each takes
// many times the memory that it takes in the file.
constexpr int kMostNested = 100;
constexpr std::int64_t kMostValues = 30'000'000;

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

std::string quoted_list(const std::vector<std::string>& names) {
  std::string list;
  for (const std::string& name : names) list += fmt::format("{}\"{}\"", list.empty() ? "" : ", ", name);
  return list;
}

}  // namespace

bool Range::holds(double x) const {
  return (open_min ? x > min : x >= min) && (open_max ? x < max : x <= max);
}

std::string Range::text() const {
  std::string out;
  if (std::isfinite(min)) out = fmt::format("{} {:.15g}", open_min ? "above" : "at least", min);
  if (std::isfinite(max)) {
    out += fmt::format("{}{} {:.15g}", out.empty() ? "" : " and ", open_max ? "below" : "at most", max);
  }
  return out;
}

Range at_least(double min) { return Range{.min = min}; }
Range above(double min) { return Range{.min = min, .open_min = true}; }
Range between(double min, double max) { return Range{.min = min, .max = max}; }
Range from_up_to(double min, double max) { return Range{.min = min, .max = max, .open_max = true}; }

std::string brief(const Json& value) {
  // Bad UTF-8 in a string must not turn an error message into another error.
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

Json parse_text(const std::string& text, const std::string& file) {
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  std::int64_t values = 0;
  const auto refuse = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > kMostNested) {
      throw InputError({file, ""}, fmt::format("is nested more than {} deep", kMostNested));
    }
    if (++values > kMostValues) {
      throw InputError(
          {file, ""},
          fmt::format("has more than {} values; a schedule of that size is written as text", kMostValues));
    }
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(parsed.get<std::string>()).second) {
      throw InputError({file, ""}, fmt::format("the key {} appears twice in one object", brief(parsed)));
    }
    return true;
  };
  try {
    return Json::parse(text, refuse, /*allow_exceptions=*/true, /*ignore_comments=*/true);
  } catch (const Json::parse_error& error) {
    // nlohmann's text is "[json.exception.parse_error.101] parse error at line 3, column 5: ..."
    std::string what = error.what();
    if (const auto bracket = what.find("] "); bracket != std::string::npos) what = what.substr(bracket + 2);
    throw InputError({file, ""}, "not valid JSON: " + what);
  } catch (const Json::out_of_range& error) {
    throw InputError({file, ""}, "a number is too large for JSON readers");
  }
}

Json parse_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw InputError({path, ""}, fmt::format("cannot be opened: {}", std::strerror(errno)));
  std::ostringstream text;
  text << in.rdbuf();
  if (in.bad() || text.fail()) throw InputError({path, ""}, "cannot be read (is it a file?)");
  return parse_text(text.str(), path);
}

void detail::wrong(const InputPlace& place, const Json& value, const std::string& expected) {
  throw InputError(place, fmt::format("expected {}, found {}", expected, brief(value)));
}

void detail::unknown_name(const InputPlace& place, const Json& value, const std::vector<std::string>& names) {
  const std::string hint = value.is_string() ? did_you_mean(value.get<std::string>(), names) : "";
  throw InputError(place,
                   fmt::format("expected one of {}, found {}{}", quoted_list(names), brief(value), hint));
}

InputPlace detail::child(const InputPlace& place, const std::string& key) {
  return InputPlace{place.file, place.pointer + "/" + escaped(key)};
}

void detail::check_range(const InputPlace& place, const Json& value, double number, const Range& range,
                         const char* of) {
  if (!range.holds(number)) wrong(place, value, of + range.text());
}

Reader::Reader(const Json& object, InputPlace place) : object_(object), place_(std::move(place)) {
  if (!object.is_object()) detail::wrong(place_, object, "an object");
}

const Json* Reader::find(const char* key) {
  known_.emplace_back(key);
  const auto found = object_.find(key);
  return found == object_.end() ? nullptr : &*found;
}

void Reader::missing(const char* key) const {
  std::vector<std::string> present;
  for (const auto& [name, value] : object_.items()) {
    if (std::find(known_.begin(), known_.end(), name) == known_.end()) present.push_back(name);
  }
  const std::string similar = nearest(key, present);
  throw InputError(
      place_, fmt::format("the key \"{}\" is missing{}", key,
                          similar.empty() ? "" : fmt::format("; \"{}\" is there, is it a slip?", similar)));
}

void Reader::require(bool holds, const char* key, const std::string& message) const {
  if (!holds) throw InputError(*key == '\0' ? place_ : detail::child(place_, key), message);
}

void Reader::finish() const {
  for (const auto& [key, value] : object_.items()) {
    if (std::find(known_.begin(), known_.end(), key) != known_.end()) continue;
    const std::string hint = did_you_mean(key, known_);
    throw InputError(
        detail::child(place_, key),
        fmt::format("unknown key{}", hint.empty() ? "; known here: " + quoted_list(known_) : hint));
  }
}

Json SchemaWriter::take() const {
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

}  // namespace stagecraft::json
