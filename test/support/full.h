#pragma once

// Sweeps go over a part of their cases that tries each of their values, and over all with STAGECRAFT_FULL=1
// in the environment (CONTRIBUTING.md).

#include <cstdlib>
#include <string_view>

namespace stagecraft::test {

[[nodiscard]] inline bool full() {
  const char* const asked = std::getenv("STAGECRAFT_FULL");
  return asked != nullptr && std::string_view(asked) == "1";
}

/// The step with which a sweep goes over its cases: `usual`, or 1 where all are asked for.
template <class Integer>
[[nodiscard]] Integer stride(Integer usual) {
  return full() ? Integer{1} : usual;
}

}  // namespace stagecraft::test
