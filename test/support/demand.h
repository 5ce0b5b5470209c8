#pragma once

#include <stdexcept>
#include <string>

namespace stagecraft::test {

/// Catch2's CHECK for ranks on threads of their own: throws what does not hold, and run_ranks hands it on.
inline void demand(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error(what);
}

}  // namespace stagecraft::test
