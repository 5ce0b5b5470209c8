#include "stagecraft/engine/transport/heartbeats/beat.h"

#include "stagecraft/schedules/program/program_text.h"

#include <algorithm>
#include <sstream>

namespace stagecraft::transport {
namespace {

constexpr std::size_t kSignBytes = 4;
constexpr double kSilenceUnit = 0.1;  // seconds, in 16 bits

char byte(unsigned value) { return static_cast<char>(static_cast<unsigned char>(value)); }
unsigned number(char byte) { return static_cast<unsigned char>(byte); }

}  // namespace

std::string to_text(const Invitation& invitation) {
  std::ostringstream text;
  text << invitation.secret << ' ' << invitation.port << ' '
       << (invitation.machine.empty() ? "?" : invitation.machine);
  for (const std::string& address : invitation.addresses) text << ' ' << address;
  return text.str();
}

std::optional<Invitation> invitation_from(const std::string& text) {
  std::istringstream words(text);
  Invitation invitation;
  if (!(words >> invitation.secret >> invitation.port >> invitation.machine) ||
      invitation.secret.size() != Invitation::kSecretBytes) {
    return std::nullopt;
  }
  for (std::string address; words >> address;) invitation.addresses.push_back(address);
  return invitation;
}

std::string hello(const std::string& secret, Rank rank) {
  std::string bytes = secret;
  for (int shift = 0; shift < 32; shift += 8) bytes += byte(static_cast<unsigned>(rank.value) >> shift);
  return bytes;
}

std::optional<Rank> rank_of_hello(const std::string& bytes, const std::string& secret) {
  if (bytes.compare(0, secret.size(), secret) != 0) return std::nullopt;
  unsigned value = 0;
  for (std::size_t i = 0; i < 4; ++i) value |= number(bytes[secret.size() + i]) << (8 * i);
  return Rank{static_cast<std::int32_t>(value)};
}

std::uint8_t beat_of(Phase phase, bool waits) {
  return static_cast<std::uint8_t>(2 * static_cast<unsigned>(phase) + (waits ? 1 : 0));
}

void read_beat(std::uint8_t beat, Sign& sign) {
  sign.phase = static_cast<Phase>(std::min<unsigned>(beat / 2, static_cast<unsigned>(Phase::save)));
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
