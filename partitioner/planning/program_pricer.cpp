#include "partitioner/planning/program_pricer.h"

#include "partitioner/planning/replica_part.h"
#include "schedules/checker.h"
#include "schedules/lowering.h"

#include <algorithm>
#include <utility>

namespace stagecraft::planning {
namespace {

// Nanoseconds an action, about: simulated, and generated, lowered and made ready for it.
constexpr std::int64_t kSimulated = 3;
constexpr std::int64_t kMade = 2'000;

bool splits_backwards(const LoweredProgram& program) {
  return std::any_of(program.ranks.begin(), program.ranks.end(), [](const auto& list) {
    return std::any_of(list.begin(), list.end(),
                       [](const Action& action) { return action.op == Op::backward_input; });
  });
}

}  // namespace

ProgramPricer::ProgramPricer(const Schedule& schedule, ScheduleRequest request, const PlacedCosts& costs,
                             std::vector<double> speed, std::optional<Bytes> capacity, FullCosts full_costs,
                             Refused refused, bool by_replica)
    : schedule_(schedule),
      request_(std::move(request)),
      placed_(costs),
      capacity_(capacity),
      full_costs_(std::move(full_costs)),
      refused_(std::move(refused)),
      by_replica_(by_replica && !schedule.orders_by_time && has_equal_pipelines(request_.placement)) {
  costs_.network = costs.network();
  costs_.speed = std::move(speed);
  costs_.stages.resize(static_cast<std::size_t>(costs.stages()));
  if (schedule_.orders_by_time) return;
  make_program();
  split_ = splits_backwards(program_);
}

void ProgramPricer::make_program() {
  request_.costs = schedule_.orders_by_time ? &costs_ : nullptr;
  simulator_.reset();
  if (by_replica_) {
    ReplicaPart made = replica_part(schedule_, request_, costs_.network, costs_.speed);
    part_ = std::move(made.part);
    program_ = lower(made.program);
    simulator_.emplace(program_, *part_);
    return;
  }
  program_ = lower(schedule_.generate(request_));
  simulator_.emplace(program_);
}

void ProgramPricer::take(const std::vector<int>& cuts, bool with_memory) {
  for (std::size_t s = 0; s < costs_.stages.size(); ++s) {
    const int first = s == 0 ? 0 : cuts[s - 1];
    const int last = s + 1 == costs_.stages.size() ? placed_.chain().layers() : cuts[s];
    costs_.stages[s] = with_memory ? full_costs_(first, last) : placed_.chain().stage(first, last);
  }
}

double ProgramPricer::seconds(const std::vector<int>& cuts) {
  take(cuts, schedule_.orders_by_time);
  if (schedule_.orders_by_time) make_program();
  return simulator_->run(costs_).makespan.value;
}

std::optional<StepBound> ProgramPricer::critical_path() {
  if (schedule_.orders_by_time) return std::nullopt;
  CriticalPath path = simulator_->critical_path(costs_);
  if (part_) as_whole(path, *part_);
  return bound_of(path, placed_, costs_.loss);
}

bool ProgramPricer::fits(const std::vector<int>& cuts) {
  if (!capacity_) return true;
  take(cuts, true);
  bool within = true;
  for (const MemoryProof& rank : check(part_ ? without_reductions(program_) : program_, &costs_).memory) {
    if (rank.peak <= *capacity_) continue;
    within = false;
    const std::vector<StageId> held = program_.placement.stages_of(rank.rank);
    // A stage's memory depends on no other stage's layers; that of one ordered by time does.
    if (held.size() > 1 || schedule_.orders_by_time) continue;
    const std::size_t s = held.front().index();
    refused_(held.front(), s == 0 ? 0 : cuts[s - 1],
             s + 1 == costs_.stages.size() ? placed_.chain().layers() : cuts[s]);
  }
  return within;
}

std::int64_t ProgramPricer::work() const {
  const auto actions = simulator_ ? static_cast<std::int64_t>(simulator_->actions()) : 0;
  return actions * (schedule_.orders_by_time ? kMade : kSimulated) + 1000;
}

}  // namespace stagecraft::planning
