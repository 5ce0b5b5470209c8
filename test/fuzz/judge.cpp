#include "test/fuzz/judge.h"

#include "schedules/checker/checker.h"
#include "schedules/lowering/lowering.h"

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

std::size_t choice_of(const std::uint8_t* data, std::size_t size) {
  std::uint64_t hash = 14695981039346656037U;  // FNV-1a
  for (std::size_t i = 0; i < size; ++i) hash = (hash ^ data[i]) * 1099511628211U;
  return hash ^ (hash >> 32U);
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
