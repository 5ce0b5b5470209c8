// Text files, plain and gzip. An input's first byte says what is asked of the rest: bytes or characters (bit
// 0), whether it is compressed here (bit 1), the sequence (bits 2 to 4) and the share for validation (bits 5
// and 6).

#include "models/data/text.h"

#include "base/error.h"
#include "test/fuzz/judge_data.h"
#include "test/fuzz/scratch_folder.h"
#include "test/fuzz/target.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

FUZZ_TARGET(text) {
  using namespace stagecraft;
  if (size == 0) return 0;
  static const fuzz::ScratchFolder folder;
  constexpr std::array kShares{0.0, 0.1, 0.5, 0.999};
  const std::uint8_t choice = data[0];
  const std::string bytes(data + 1, data + size);
  TextDataConfig config;
  config.path = folder.write("text", (choice & 2U) != 0 ? fuzz::compressed(bytes) : bytes);
  config.tokens = (choice & 1U) != 0 ? "characters" : "bytes";
  config.sequence = 1 + (choice >> 2U) % 8;
  config.validation = kShares[(choice >> 5U) % 4];
  try {
    fuzz::judge(*open_text(config, {"x", "/data/path"}));
    fuzz::accepted();
  } catch (const InputError&) {
  }
  return 0;
}
