#include "stagecraft/partitioner/planning/work_budget.h"

namespace stagecraft::planning {
namespace {

/// Of the work that is left, what one layout may have at least while others wait.
constexpr std::int64_t kLayoutShare = 8;
/// Of a stage and micro-batch, and nanoseconds to make and prove one.
constexpr std::int64_t kActions = 10;
constexpr std::int64_t kNanoseconds = 100;
/// Seconds of a stage and micro-batch to make, prove and simulate its part of a program.
constexpr double kProgram = 5e-6;

}  // namespace

CutSearchBudget WorkBudget::share(std::size_t layouts, const std::function<void()>& tell) const {
  const auto waiting = static_cast<std::int64_t>(std::max<std::size_t>(layouts, 1));
  CutSearchBudget budget;
  std::optional<Seconds> until;
  if (asked_.time_limit) {
    until = spent() + left() / static_cast<double>(std::min(waiting, kLayoutShare));
  } else {
    budget.work = std::max(left_ / waiting, left_ / kLayoutShare);
  }
  budget.go_on = [this, tell, until] {
    tell();
    return !until || spent() < *until;
  };
  return budget;
}

void WorkBudget::take_program(int micro_batches, int stages) {
  take(static_cast<std::int64_t>(micro_batches) * stages * kActions * kNanoseconds);
}

Seconds WorkBudget::program_time(int micro_batches, int stages) {
  return Seconds{kProgram * micro_batches * stages};
}

}  // namespace stagecraft::planning
