// Files of tokens. An input's first two bytes say what the rest is: a plain file of 16 or 32 bits, or one of llm.c's, which
// says so itself (bit 0), Megatron's index (bit 1) of a good file of 64 tokens, or the file of a good index; how documents
// make samples (bits 2 and 3), the sequence (bits 4 to 6), the vocabulary (the second byte).

#include "models/data/tokens.h"

#include "base/error.h"
#include "test/fuzz/judge_data.h"
#include "test/fuzz/scratch_folder.h"
#include "test/fuzz/target.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace stagecraft::fuzz {
namespace {

void append(std::string& bytes, std::uint64_t value, int width) {
  for (int i = 0; i < width; ++i) bytes += static_cast<char>(value >> (8U * static_cast<unsigned>(i)) & 255U);
}

/// Of 64 tokens of 16 bits in four documents.
std::string good_index() {
  std::string index("MMIDIDX\0\0", 9);
  append(index, 1, 8);  // version
  append(index, 8, 1);  // of 16 bits, without a sign
  append(index, 4, 8);  // sequences
  append(index, 5, 8);  // document boundaries
  for (int i = 0; i < 4; ++i) append(index, 16, 4);
  for (unsigned i = 0; i < 4; ++i) append(index, 32U * i, 8);
  for (unsigned i = 0; i <= 4; ++i) append(index, i, 8);
  return index;
}

std::string good_tokens() {
  std::string tokens;
  for (unsigned i = 0; i < 64; ++i) append(tokens, i % 16, 2);
  return tokens;
}

}  // namespace
}  // namespace stagecraft::fuzz

FUZZ_TARGET(tokens) {
  using namespace stagecraft;
  if (size < 2) return 0;
  static const fuzz::ScratchFolder folder;
  const std::uint8_t choice = data[0];
  const std::string bytes(data + 2, data + size);
  folder.remove("data.idx");
  TokensDataConfig config;
  if ((choice & 2U) == 0) {
    config.path = folder.write("data.bin", bytes);
    if ((choice & 128U) != 0) folder.write("data.idx", fuzz::good_index());
  } else {
    config.path = folder.write("data.bin", fuzz::good_tokens());
    folder.write("data.idx", bytes);
  }
  config.bits = (choice & 1U) != 0 ? 32 : 16;
  config.documents = static_cast<Documents>((choice >> 2U) % 3);
  config.sequence = 1 + (choice >> 4U) % 8;
  config.vocabulary = 1 + data[1] * 256;
  if (config.documents == Documents::separated && (choice & 64U) != 0) config.separator = 0;
  config.validation = (choice & 32U) != 0 ? 0.5 : 0;
  try {
    fuzz::judge(*open_tokens(config, {"x", "/data"}));
    fuzz::accepted();
  } catch (const InputError&) {
  }
  return 0;
}
