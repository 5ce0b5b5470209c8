#pragma once

// What heartbeats say, as bytes.

#include "stagecraft/engine/transport/signs.h"
#include "stagecraft/schedules/program/program_text.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace stagecraft::transport {

/// How a guest finds its host.
struct Invitation {
  static constexpr std::size_t kSecretBytes = 16;
  std::string secret;
  std::uint16_t port = 0;
  std::string machine;                 ///< boot_id() of the host's
  std::vector<std::string> addresses;  ///< the host's, loopback last
};
[[nodiscard]] std::string to_text(const Invitation& invitation);
[[nodiscard]] std::optional<Invitation> invitation_from(const std::string& text);

/// A guest's first words: the secret and its rank. The host answers with the secret.
[[nodiscard]] std::string hello(const std::string& secret, Rank rank);
constexpr std::size_t kHelloBytes = Invitation::kSecretBytes + 4;
/// The rank of a hello with this secret; none of another one.
[[nodiscard]] std::optional<Rank> rank_of_hello(const std::string& bytes, const std::string& secret);

/// A guest's beat: one byte.
[[nodiscard]] std::uint8_t beat_of(Phase phase, bool waits);
constexpr std::uint8_t kGoodbye = 0xFF;
/// Sets what a beat says.
void read_beat(std::uint8_t beat, Sign& sign);

/// The host's: four bytes per rank.
[[nodiscard]] std::string table_of(const std::vector<Sign>& signs);
[[nodiscard]] std::size_t table_bytes(std::size_t world);
/// `bytes` has table_bytes(world).
[[nodiscard]] std::vector<Sign> read_table(const std::string& bytes);

}  // namespace stagecraft::transport
