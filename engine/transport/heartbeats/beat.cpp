#include "engine/transport/heartbeats/beat.h"

#include "base/sha256.h"
#include "schedules/program/program_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <random>
#include <sstream>

namespace stagecraft::transport {
namespace {

constexpr std::size_t kSignBytes = 4;
constexpr double kSilenceUnit = 0.1;  // seconds, in 16 bits

char byte(unsigned value) { return static_cast<char>(static_cast<unsigned char>(value)); }
unsigned number(char byte) { return static_cast<unsigned char>(byte); }

std::string proof(const char* maker, const std::string& secret, const std::string& host_nonce,
                  const std::string& guest_nonce, Rank rank) {
  return hmac_sha256(
      secret, fmt::format("stagecraft heartbeat {} {} {} {}", maker, host_nonce, guest_nonce, rank.value));
}

}  // namespace

std::string to_text(const Invitation& invitation) {
  std::ostringstream text;
  text << invitation.secret << ' ' << (invitation.machine.empty() ? "?" : invitation.machine);
  for (const auto& [address, port] : invitation.places) text << ' ' << address << ':' << port;
  return text.str();
}

std::optional<Invitation> invitation_from(const std::string& text) {
  std::istringstream words(text);
  Invitation invitation;
  if (!(words >> invitation.secret >> invitation.machine) ||
      invitation.secret.size() != Invitation::kSecretBytes) {
    return std::nullopt;
  }
  for (std::string word; words >> word;) {
    const std::size_t colon = std::min(word.find(':'), word.size());
    std::uint16_t port = 0;
    const char* const end = word.data() + word.size();
    if (colon == word.size() || std::from_chars(word.data() + colon + 1, end, port).ptr != end) continue;
    invitation.places.push_back({word.substr(0, colon), port});
  }
  return invitation;
}

std::string make_nonce() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
}

std::string hello(const std::string& secret, const std::string& host_nonce, const std::string& own_nonce,
                  Rank rank) {
  std::string bytes;
  for (int shift = 0; shift < 32; shift += 8) bytes += byte(static_cast<unsigned>(rank.value) >> shift);
  return bytes + own_nonce + proof("guest", secret, host_nonce, own_nonce, rank);
}

std::optional<std::pair<Rank, std::string>> guest_of_hello(const std::string& bytes,
                                                           const std::string& secret,
                                                           const std::string& host_nonce) {
  unsigned value = 0;
  for (std::size_t i = 0; i < 4; ++i) value |= number(bytes[i]) << (8 * i);
  const Rank rank{static_cast<std::int32_t>(value)};
  const std::string nonce = bytes.substr(4, kNonceBytes);
  if (hello(secret, host_nonce, nonce, rank) != bytes.substr(0, kHelloBytes)) return std::nullopt;
  return std::pair{rank, nonce};
}

std::string answer(const std::string& secret, const std::string& host_nonce, const std::string& guest_nonce,
                   Rank rank) {
  return proof("host", secret, host_nonce, guest_nonce, rank);
}

std::uint8_t beat_of(Phase phase, bool waits) {
  return static_cast<std::uint8_t>(2 * static_cast<unsigned>(phase) + (waits ? 1 : 0));
}

void read_beat(std::uint8_t beat, Sign& sign) {
  sign.phase = static_cast<Phase>(std::min<unsigned>(beat / 2, static_cast<unsigned>(Phase::spare)));
  sign.waits = beat % 2 != 0;
}

std::string table_of(const std::vector<Sign>& signs) {
  std::string bytes;
  for (const Sign& sign : signs) {
    const auto silence = static_cast<unsigned>(std::clamp(sign.silence.value / kSilenceUnit, 0.0, 65535.0));
    bytes += byte(static_cast<unsigned>(sign.life));
    bytes += byte(beat_of(sign.phase, sign.waits));
    bytes += byte(silence);
    bytes += byte(silence >> 8U);
  }
  return bytes;
}

std::size_t table_bytes(std::size_t world) { return world * kSignBytes; }

std::vector<Sign> read_table(const std::string& bytes) {
  std::vector<Sign> signs(bytes.size() / kSignBytes);
  for (std::size_t i = 0; i < signs.size(); ++i) {
    const std::size_t at = i * kSignBytes;
    signs[i].life =
        static_cast<Sign::Life>(std::min(number(bytes[at]), static_cast<unsigned>(Sign::Life::gone)));
    read_beat(static_cast<std::uint8_t>(number(bytes[at + 1])), signs[i]);
    signs[i].silence = Seconds{(number(bytes[at + 2]) + number(bytes[at + 3]) * 256) * kSilenceUnit};
  }
  return signs;
}

}  // namespace stagecraft::transport
