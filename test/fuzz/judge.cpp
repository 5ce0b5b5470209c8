#include "test/fuzz/judge.h"

#include "schedules/checker.h"
#include "schedules/lowering.h"

#include <cstdio>
#include <cstdlib>

namespace stagecraft::fuzz {
namespace {

bool small(const ProgramHeader& header) {
  return header.micro_batches() <= 1000 && header.placement.stages() <= 100 &&
         header.placement.world() <= 100;
}

}  // namespace

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  std::abort();
}

void judge(const ScheduleProgram& program) {
  if (small(program)) judge(lower(program));
}

void judge(const LoweredProgram& program) {
  if (!small(program)) return;
  const Proof proof = check(program);
  require(proof.accepted() || !refusal(proof.findings).empty(), "a refusal says why");
}

}  // namespace stagecraft::fuzz
