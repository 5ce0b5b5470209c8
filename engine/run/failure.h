#pragma once

// What becomes of an exception on a rank.

#include <exception>
#include <string>

namespace stagecraft {

struct Failure {
  int code = 1;  ///< as in schedules/base/error.h
  std::string message;
  bool secondary = false;  ///< a PeerError: most likely another rank failed first
};

/// Never throws.
[[nodiscard]] Failure failure_of(const std::exception_ptr& error) noexcept;

}  // namespace stagecraft
