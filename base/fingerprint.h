#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace stagecraft {

/// XXH3 (https://xxhash.com), 64 bits, as 16 hex digits: tells apart, detects corruption, is no defence against an
/// adversary. The same on every machine.
class Fingerprint {
 public:
  Fingerprint();
  Fingerprint& add(std::string_view bytes);
  /// Of all that was added; more may follow.
  [[nodiscard]] std::string text() const;

 private:
  struct State;
  struct Free {
    void operator()(State* state) const;
  };
  std::unique_ptr<State, Free> state_;
};
[[nodiscard]] std::string fingerprint(std::string_view bytes);

}  // namespace stagecraft
