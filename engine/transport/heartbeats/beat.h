#pragma once

// What heartbeats say, as bytes.

#include "engine/transport/signs.h"
#include "schedules/program/program_text.h"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace stagecraft::transport {

/// How a guest finds its host.
struct Invitation {
  static constexpr std::size_t kSecretBytes = 32;
  /// Where the host listens.
  struct Place {
    std::string address;
    std::uint16_t port = 0;
  };
  std::string secret;
  std::string machine;        ///< boot_id() of the host's
  std::vector<Place> places;  ///< loopback last
};
[[nodiscard]] std::string to_text(const Invitation& invitation);
[[nodiscard]] std::optional<Invitation> invitation_from(const std::string& text);

// How both ends prove that they have the secret, which itself never travels: the host sends a nonce of its own; the
// guest answers with its rank, a nonce of its own and a proof over both; the host answers with another proof over
// both. A proof says who made it and for whom, so neither an echo nor an earlier one will do.

constexpr std::size_t kNonceBytes = 32;
constexpr std::size_t kProofBytes = 64;
[[nodiscard]] std::string make_nonce();
constexpr std::size_t kHelloBytes = 4 + kNonceBytes + kProofBytes;
[[nodiscard]] std::string hello(const std::string& secret, const std::string& host_nonce,
                                const std::string& own_nonce, Rank rank);
/// The rank and the nonce of a hello with a right proof; nothing of another one. `bytes` has kHelloBytes.
[[nodiscard]] std::optional<std::pair<Rank, std::string>> guest_of_hello(const std::string& bytes,
                                                                         const std::string& secret,
                                                                         const std::string& host_nonce);
/// The host's proof.
[[nodiscard]] std::string answer(const std::string& secret, const std::string& host_nonce,
                                 const std::string& guest_nonce, Rank rank);

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
