// plan.json: what is read is written and read back the same, and survives what `check` and `simulate` do with
// it, also with another number of micro-batches and another schedule.

#include "base/error.h"
#include "base/json.h"
#include "schedules/generators/registry.h"
#include "schedules/generators/schedule.h"
#include "test/fuzz/json_changes.h"
#include "test/fuzz/judge_files.h"
#include "test/fuzz/target.h"

#include <cstddef>
#include <cstdint>
#include <string>

namespace stagecraft::fuzz {
namespace {

/// What `compare PLAN` changes: the schedule, and with --micro-batches their number.
void judge_otherwise(Plan plan, std::size_t choice) {
  plan.program.reset();
  plan.micro_batches = 1 + static_cast<int>(choice / schedules().size() % 5);
  plan.schedule.name = schedules()[choice % schedules().size()].name;
  try {
    validate(plan, "x");
  } catch (const InputError&) {  // not such stages, says the schedule
    return;
  }
  judge(plan);
}

}  // namespace
}  // namespace stagecraft::fuzz

FUZZ_MUTATOR(plan_json) { return stagecraft::fuzz::mutate_json(data, size, max_size, seed); }

FUZZ_TARGET(plan_json) {
  using namespace stagecraft;
  Plan plan;
  try {
    plan = json::read<Plan>(json::parse_text(std::string(data, data + size), "x"), {"x", ""});
    validate(plan, "x");
  } catch (const InputError&) {
    return 0;
  }
  fuzz::accepted();
  fuzz::require_reads_back(plan);
  // Far slower than reading, so only for some.
  constexpr std::size_t kOneOf = 16;
  const std::size_t choice = fuzz::choice_of(data, size);
  if (choice % kOneOf == 0) fuzz::judge(plan);
  if (choice % kOneOf == 1) fuzz::judge_otherwise(plan, choice / kOneOf);
  return 0;
}
