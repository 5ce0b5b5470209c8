// Programs as text: what is read prints to text, and to JSON, that reads back as the same program.

#include "schedules/program/program_text.h"

#include "base/json.h"
#include "schedules/program/program_json.h"
#include "test/fuzz/judge.h"
#include "test/fuzz/target.h"

#include <cstddef>
#include <cstdint>
#include <string>

FUZZ_TARGET(program_text) {
  using namespace stagecraft;
  ScheduleProgram program;
  try {
    program = program_from_text(std::string(data, data + size), "x");
  } catch (const InputError&) {
    return 0;
  }
  fuzz::accepted();
  fuzz::require(program_from_text(to_text(program), "x") == program, "text reads back");
  fuzz::require(program_from_json(json::parse_text(to_json(program).dump(), "x"), "x") == program,
                "JSON reads back");
  fuzz::judge(program);
  return 0;
}
