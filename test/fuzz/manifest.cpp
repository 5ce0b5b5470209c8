// manifest.json of a checkpoint: what is read is written and read back the same, with the hash that it has then.

#include "engine/records/metrics/manifest.h"

#include "base/error.h"
#include "base/json.h"
#include "test/fuzz/json_changes.h"
#include "test/fuzz/judge_files.h"
#include "test/fuzz/scratch_folder.h"
#include "test/fuzz/target.h"

#include <cstddef>
#include <cstdint>
#include <string>

FUZZ_MUTATOR(manifest) { return stagecraft::fuzz::mutate_json(data, size, max_size, seed); }

FUZZ_TARGET(manifest) {
  using namespace stagecraft;
  static const fuzz::ScratchFolder folder;
  Manifest manifest;
  try {
    manifest = json::read<Manifest>(json::parse_text(std::string(data, data + size), "x"), {"x", ""});
  } catch (const InputError&) {
    return 0;
  }
  fuzz::accepted();
  fuzz::require_reads_back(manifest);
  (void)folder.write(kManifestName, manifest_text(manifest));
  try {
    Manifest again = read_manifest(folder.path());
    again.hash = manifest.hash;
    fuzz::require(json::write(again) == json::write(manifest), "a file reads back");
  } catch (const InputError&) {  // two files of one name
  }
  return 0;
}
