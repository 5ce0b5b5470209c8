#include "base/sha256.h"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace stagecraft {
namespace {

using Words = std::array<std::uint32_t, 8>;
constexpr std::size_t kBlock = 64, kLength = 8;

constexpr std::array<std::uint32_t, 64> kRound{
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

/// Section 6.2.2, of the first kBlock bytes.
void add_block(Words& state, std::string_view block) {
  std::array<std::uint32_t, 64> w{};
  for (std::size_t t = 0; t < 16; ++t) {
    for (std::size_t byte = 0; byte < 4; ++byte) {
      w[t] = w[t] << 8 | static_cast<unsigned char>(block[4 * t + byte]);
    }
  }
  for (std::size_t t = 16; t < w.size(); ++t) {
    const std::uint32_t near = w[t - 2], far = w[t - 15];
    w[t] = (std::rotr(near, 17) ^ std::rotr(near, 19) ^ near >> 10) + w[t - 7] +
           (std::rotr(far, 7) ^ std::rotr(far, 18) ^ far >> 3) + w[t - 16];
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (std::size_t t = 0; t < w.size(); ++t) {
    const std::uint32_t first =
        h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) + ((e & f) ^ (~e & g)) + kRound[t] + w[t];
    const std::uint32_t second =
        (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g;
    g = f;
    f = e;
    e = d + first;
    d = c;
    c = b;
    b = a;
    a = first + second;
  }
  const Words add{a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < state.size(); ++i) state[i] += add[i];
}

}  // namespace

std::string sha256(std::string_view bytes) {
  Words state{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  const std::uint64_t bits = std::uint64_t{bytes.size()} * 8;
  for (; bytes.size() >= kBlock; bytes.remove_prefix(kBlock)) add_block(state, bytes);
  // A one, zeros up to a block less the length, the length in bits, big-endian.
  std::string end(bytes);
  end += '\x80';
  while (end.size() % kBlock != kBlock - kLength) end += '\0';
  for (std::size_t i = 0; i < kLength; ++i) end += static_cast<char>(bits >> (56 - 8 * i));
  for (std::size_t at = 0; at < end.size(); at += kBlock) add_block(state, std::string_view(end).substr(at));
  std::string text;
  for (const std::uint32_t word : state) text += fmt::format("{:08x}", word);
  return text;
}

std::string hmac_sha256(std::string_view key, std::string_view message) {
  const auto bytes_of = [](const std::string& hex) {
    const auto digit = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
    std::string bytes;
    for (std::size_t i = 0; i < hex.size(); i += 2) {
      bytes += static_cast<char>(digit(hex[i]) * 16 + digit(hex[i + 1]));
    }
    return bytes;
  };
  std::string block = key.size() > kBlock ? bytes_of(sha256(key)) : std::string(key);
  block.resize(kBlock, '\0');
  std::string inner = block, outer = block;
  for (char& byte : inner) byte = static_cast<char>(byte ^ '\x36');
  for (char& byte : outer) byte = static_cast<char>(byte ^ '\x5c');
  return sha256(outer.append(bytes_of(sha256(inner.append(message)))));
}

bool is_hex(std::string_view text, std::size_t digits) {
  return text.size() == digits && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

}  // namespace stagecraft
