#include "base/fingerprint.h"

#include <fmt/format.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace stagecraft {

struct Fingerprint::State {
  XXH3_state_t its;
};

void Fingerprint::Free::operator()(State* state) const { delete state; }

Fingerprint::Fingerprint() : state_(new State) { XXH3_64bits_reset(&state_->its); }

Fingerprint& Fingerprint::add(std::string_view bytes) {
  XXH3_64bits_update(&state_->its, bytes.data(), bytes.size());
  return *this;
}

std::string Fingerprint::text() const { return fmt::format("{:016x}", XXH3_64bits_digest(&state_->its)); }

std::string fingerprint(std::string_view bytes) {
  return fmt::format("{:016x}", XXH3_64bits(bytes.data(), bytes.size()));
}

}  // namespace stagecraft
