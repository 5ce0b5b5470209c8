#pragma once

// What becomes of an exception in the end: a message and the process's exit code. The one table of the codes.

#include <exception>
#include <string>

namespace stagecraft {

namespace exit_code {
inline constexpr int kDefect = 1;
inline constexpr int kInput = 2;
inline constexpr int kRefused = 3;
inline constexpr int kPeer = 4;
inline constexpr int kStopped = 75;
}  // namespace exit_code

struct Failure {
  int code = exit_code::kDefect;
  std::string message;
  bool secondary = false;  ///< a PeerError: most likely another rank failed first
};

/// Never throws.
[[nodiscard]] Failure failure_of(const std::exception_ptr& error) noexcept;

}  // namespace stagecraft
