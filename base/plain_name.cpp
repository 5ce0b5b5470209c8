#include "base/plain_name.h"

namespace stagecraft {

bool is_plain_name(std::string_view name, std::string_view ending) {
  constexpr std::size_t kLongest = 255;
  constexpr std::string_view kNever("/\\\0", 3);
  return name.size() > ending.size() && name.size() <= kLongest && name.ends_with(ending) &&
         name.front() != '.' && name.find_first_of(kNever) == std::string_view::npos;
}

}  // namespace stagecraft
