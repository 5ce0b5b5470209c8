#pragma once

// What is done with profiles, clusters and plans that their readers have let through.

#include "base/json.h"
#include "partitioner/plan/cluster.h"
#include "partitioner/plan/plan.h"
#include "partitioner/plan/profile.h"
#include "test/fuzz/judge.h"

namespace stagecraft::fuzz {

/// What is written reads back as the same value, and is as valid where its kind has more rules than its
/// description.
template <class T>
void require_reads_back(const T& value) {
  const Json written = json::write(value);
  bool same = false;
  try {
    const T again = json::read<T>(json::parse_text(written.dump(), "x"), {"x", ""});
    if constexpr (requires { validate(again, "x"); }) validate(again, "x");
    same = json::write(again) == written;
  } catch (const InputError&) {  // not the same
  }
  require(same, "JSON reads back");
}

/// Finite, and not below zero.
[[nodiscard]] bool sane(Seconds time);

/// What plan.json writes of it can be read, and the checker takes it.
void require_stage(const StageCosts& costs);

/// Proves and prices the plan's program where that is small, as `check` and `simulate` do.
void judge(const Plan& plan);

}  // namespace stagecraft::fuzz
