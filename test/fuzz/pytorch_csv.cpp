// PyTorch's schedules: what is read prints to a file that reads back as the same cells, and both kinds of
// program can be made of it. What can be written again from the program has the program's actions.

#include "schedules/interchange/pytorch_csv.h"

#include "test/fuzz/judge.h"
#include "test/fuzz/target.h"

#include <cstddef>
#include <cstdint>
#include <string>

FUZZ_TARGET(pytorch_csv) {
  using namespace stagecraft;
  PytorchSchedule schedule;
  try {
    schedule = pytorch_schedule_from_csv(std::string(data, data + size), "x");
  } catch (const InputError&) {
    return 0;
  }
  fuzz::accepted();
  fuzz::require(pytorch_schedule_from_csv(to_csv(schedule), "x") == schedule, "cells read back");
  const ScheduleProgram program = schedule_program(schedule);
  if (program.micro_batches() > 1000) return 0;  // only slow
  fuzz::judge(program);
  fuzz::judge(lowered_program(schedule));
  try {
    fuzz::require(schedule_program(pytorch_schedule(program)) == program, "compute only reads back");
    for (const SendWaits waits : {SendWaits::stated, SendWaits::left_out}) {
      const PytorchSchedule all = pytorch_schedule_with_communication(program, waits);
      fuzz::require(schedule_program(all) == program, "with communication reads back");
      fuzz::judge(lowered_program(all));
    }
  } catch (const RefusedError&) {  // incomplete, or it stands still
  }
  return 0;
}
