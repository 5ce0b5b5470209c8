#pragma once

// The errors of Stagecraft. Libraries throw; only cli/ turns a throw into a message and an exit code.
//   InputError    bad usage, bad file, bad value                      exit 2
//   RefusedError  no proof, no plan, or too little memory             exit 3
//   PeerError     another rank died, hung or disagreed, or another start took the run over   exit 4
//   StoppedError  stopped by a signal after a checkpoint              exit 75
//   anything else (InternalError included): a defect of ours          exit 1

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

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

/// Input with a key that nobody asked for. Whoever knows the kind of file may know where such a key belongs, and then
/// says more than `said`.
class UnknownKeyError : public InputError {
 public:
  UnknownKeyError(const InputError& said, InputPlace place, std::string key)
      : InputError(said), place_(std::move(place)), key_(std::move(key)) {}
  [[nodiscard]] const InputPlace& place() const { return place_; }  ///< of the key
  [[nodiscard]] const std::string& key() const { return key_; }

 private:
  InputPlace place_;
  std::string key_;
};

/// A program that fails its proof, or a plan that cannot exist.
struct RefusedError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Another rank failed, or did not answer within the timeout.
struct PeerError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Another process has taken the folder that this one writes in, and this one writes nothing more there (base/fence.h).
struct TakenOverError : PeerError {
  using PeerError::PeerError;
};

/// The run stopped on SIGTERM or SIGUSR1 and its state is on disk.
struct StoppedError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A broken promise inside Stagecraft.
struct InternalError : std::logic_error {
  using std::logic_error::logic_error;
};

namespace detail {
[[noreturn]] void check_failed(const char* condition, const char* file, int line, const std::string& what);
}

}  // namespace stagecraft

/// Programmer errors: throws InternalError with the condition, its place and `what` (a std::string).
#define STAGECRAFT_CHECK(condition, what)                                                         \
  do {                                                                                            \
    if (!(condition)) ::stagecraft::detail::check_failed(#condition, __FILE__, __LINE__, (what)); \
  } while (false)
