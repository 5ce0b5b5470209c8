// profile.json: what is read is written and read back the same, and every stage that can be cut from it is
// one that plan.json can carry.

#include "base/error.h"
#include "base/json.h"
#include "test/fuzz/json_changes.h"
#include "test/fuzz/judge_files.h"
#include "test/fuzz/target.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

FUZZ_MUTATOR(profile_json) { return stagecraft::fuzz::mutate_json(data, size, max_size, seed); }

FUZZ_TARGET(profile_json) {
  using namespace stagecraft;
  Profile profile;
  try {
    profile = json::read<Profile>(json::parse_text(std::string(data, data + size), "x"), {"x", ""});
    validate(profile, "x");
  } catch (const InputError&) {
    return 0;
  }
  fuzz::accepted();
  fuzz::require_reads_back(profile);
  constexpr int kMostLayers = 8;  // more are only slow
  for (const Measurement& measurement : profile.measurements) {
    const int layers = std::min(kMostLayers, static_cast<int>(measurement.layers.size()));
    for (int first = 0; first < layers; ++first) {
      for (int last = first + 1; last <= layers; ++last) {
        fuzz::require_stage(
            stage_costs(measurement, first, last, profile.optimizer_bytes_per_parameter_byte));
      }
    }
  }
  return 0;
}
