#include "base/error.h"

#include <fmt/format.h>

namespace stagecraft {
namespace {

std::string place_prefix(const InputPlace& place) {
  std::string prefix;
  if (!place.file.empty()) prefix += place.file + ": ";
  if (!place.pointer.empty()) prefix += place.pointer + ": ";
  return prefix;
}

}  // namespace

InputError::InputError(const InputPlace& place, std::string_view what)
    : std::runtime_error(place_prefix(place) + std::string(what)) {}

void detail::check_failed(const char* condition, const char* file, int line, const std::string& what) {
  throw InternalError(
      fmt::format("{} (`{}` failed at {}:{}); this is a defect in Stagecraft", what, condition, file, line));
}

}  // namespace stagecraft
