// summary.json: what is read is written and read back the same, and a report can be made of it.

#include "base/error.h"
#include "base/json.h"
#include "test/fuzz/json_changes.h"
#include "test/fuzz/judge_run.h"
#include "test/fuzz/target.h"

#include <cstddef>
#include <cstdint>
#include <string>

FUZZ_MUTATOR(summary) { return stagecraft::fuzz::mutate_json(data, size, max_size, seed); }

FUZZ_TARGET(summary) {
  using namespace stagecraft;
  static RunFiles run = fuzz::empty_run();
  try {
    run.summary = json::read<RunSummary>(json::parse_text(std::string(data, data + size), "x"), {"x", ""});
  } catch (const InputError&) {
    return 0;
  }
  fuzz::accepted();
  fuzz::require_reads_back(run.summary);
  if (fuzz::choice_of(data, size) % fuzz::kReportOneOf == 0) fuzz::judge(run);
  return 0;
}
