#pragma once

// The errors of Stagecraft. Libraries throw; only cli/ turns a throw into a message and an exit code.
//   InputError    bad usage, bad file, bad value                      exit 2
//   RefusedError  no proof, no plan, or too little memory             exit 3
//   PeerError     another rank died, hung or disagreed                exit 4
//   StoppedError  stopped by a signal after a checkpoint              exit 75
//   anything else (InternalError included): a defect of ours          exit 1

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace stagecraft {

/// Where in the user's input something is wrong. Empty parts are left out of the message.
struct InputPlace {
  std::string file;     ///< path as the user gave it
  std::string pointer;  ///< JSON pointer, "/model/layers", or "line 12"
};

/// Input that cannot be used. The message has one shape everywhere:
///   run.json: /optimizer/type: "adamm" is not one of "sgd", "adam", "adamw"; did you mean "adam"?
class InputError : public std::runtime_error {
 public:
  explicit InputError(const std::string& what) : std::runtime_error(what) {}
  InputError(const InputPlace& place, std::string_view what);
};

/// A program that fails its proof, or a plan that cannot exist.
struct RefusedError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Another rank failed, or did not answer within the timeout.
struct PeerError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The run stopped on SIGTERM or SIGUSR1 and its state is on disk.
struct StoppedError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A broken promise inside Stagecraft.
struct InternalError : std::logic_error {
  using std::logic_error::logic_error;
};

/// The candidate closest to `word` by edit distance, or "" when none is close enough to be a typo of it.
[[nodiscard]] std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

/// `; did you mean "adam"?` or "".
[[nodiscard]] std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

namespace detail {
[[noreturn]] void check_failed(const char* condition, const char* file, int line, const std::string& what);
}

}  // namespace stagecraft

/// Programmer errors: throws InternalError with the condition, its place and `what` (a std::string).
#define STAGECRAFT_CHECK(condition, what)                                                         \
  do {                                                                                            \
    if (!(condition)) ::stagecraft::detail::check_failed(#condition, __FILE__, __LINE__, (what)); \
  } while (false)
