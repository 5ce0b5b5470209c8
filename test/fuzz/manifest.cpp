// manifest.json of a checkpoint: what is read is written and read back the same.

#include "engine/records/metrics/manifest.h"

#include "base/error.h"
#include "base/json.h"
#include "test/fuzz/json_changes.h"
#include "test/fuzz/judge_files.h"
#include "test/fuzz/target.h"

#include <cstddef>
#include <cstdint>
#include <string>

FUZZ_MUTATOR(manifest) { return stagecraft::fuzz::mutate_json(data, size, max_size, seed); }

FUZZ_TARGET(manifest) {
  using namespace stagecraft;
  try {
    fuzz::require_reads_back(
        json::read<Manifest>(json::parse_text(std::string(data, data + size), "x"), {"x", ""}));
  } catch (const InputError&) {
  }
  return 0;
}
