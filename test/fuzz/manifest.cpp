// manifest.json of a checkpoint: what is read is written and read back the same.

#include "stagecraft/engine/metrics/manifest.h"

#include "stagecraft/base/error.h"
#include "stagecraft/base/json.h"
#include "test/fuzz/judge_files.h"

#include <cstddef>
#include <cstdint>
#include <string>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace stagecraft;
  try {
    fuzz::require_reads_back(
        json::read<Manifest>(json::parse_text(std::string(data, data + size), "x"), {"x", ""}));
  } catch (const InputError&) {
  }
  return 0;
}
