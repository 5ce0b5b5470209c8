#include "partitioner/search/program_pricer.h"

#include "partitioner/search/replica_part.h"
#include "schedules/checker/checker.h"
#include "schedules/lowering/lowering.h"
#include "schedules/program/consecutive.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace stagecraft::planning {
namespace {

// Nanoseconds per action, about: simulated, and with the critical path.
constexpr std::int64_t kSimulated = 3;
constexpr std::int64_t kFollowed = 12;
/// And where a pipeline is ordered by its costs to stand for all; with recomputes its order is made several times.
constexpr std::int64_t kOrdered = 3'000, kOrderedAgain = 12'000;
/// Of any call.
constexpr std::int64_t kAtLeast = 1000;
/// Programs kept, of those that differ in what is repeated.
constexpr std::size_t kMostMade = 16;

}  // namespace

struct ProgramPricer::Made {
  Made(const Made&) = delete;
  Made(LoweredProgram lowered, RecomputeSettings of, std::optional<PartOf> of_whole)
      : settings(std::move(of)),
        program(std::move(lowered)),
        part(std::move(of_whole)),
        simulator(part ? Simulator(program, *part) : Simulator(program)) {}

  [[nodiscard]] std::int64_t actions() const { return static_cast<std::int64_t>(simulator.actions()); }

  RecomputeSettings settings;
  LoweredProgram program;
  std::optional<PartOf> part;  // of the whole's, if it stands for that
  Simulator simulator;
  std::optional<PeakForms> peaks{};  // when asked for
};

ProgramPricer::ProgramPricer(const Schedule& schedule, ScheduleRequest request, const PlacedCosts& costs,
                             std::optional<Bytes> capacity, FullCosts full_costs, const ProgramFacts& facts,
                             bool by_replica)
    : schedule_(schedule),
      request_(std::move(request)),
      placed_(costs),
      capacity_(capacity),
      facts_(facts),
      full_costs_(std::move(full_costs)),
      by_replica_(by_replica && has_equal_pipelines(request_.placement)),
      goes_on_(schedule.synchronous && !request_.clip &&
               can_be_followed(request_.placement, request_.group_sizes.front())),
      ordered_(by_replica && schedule.orders_by_time) {
  costs_.network = costs.network();
  costs_.speed = costs.speed();
  costs_.loss = costs.chain().loss_report();
  for (const TiedWeight& tie : facts.ties) costs_.ties.push_back(tie.bytes);
  costs_.stages.resize(to_size(costs.stages()));
  if (schedule_.orders_by_time) return;
  std::vector<int> cuts(costs_.stages.size() - 1);  // any
  std::iota(cuts.begin(), cuts.end(), 1);
  facts.set(request_, cuts);
  request_.recompute.resize(costs_.stages.size(), Recompute::none);
  select(RecomputeSettings(request_.recompute));
  split_ = splits_backwards(made_.back()->program.ranks);
}

ProgramPricer::~ProgramPricer() = default;

std::unique_ptr<ProgramPricer::Made> ProgramPricer::make(const RecomputeSettings& settings) {
  request_.costs = schedule_.orders_by_time ? &costs_ : nullptr;
  request_.recompute = settings;
  std::unique_ptr<Made> made;
  if (by_replica_) {
    ReplicaPart replica = replica_part(schedule_, request_, costs_.network, costs_.speed);
    made = std::make_unique<Made>(lower(replica.program), settings, std::move(replica.part));
  } else {
    made = std::make_unique<Made>(lower(schedule_.generate(request_)), settings, std::nullopt);
  }
  work_ += made->actions() * (!ordered_ ? kMade : any_recompute(settings) ? kOrderedAgain : kOrdered);
  return made;
}

bool ProgramPricer::is_of(const Made& made, const RecomputeSettings& settings) const {
  return made.settings == settings && made.program.gradient_from == request_.gradient_from &&
         made.program.ties == request_.ties;
}

void ProgramPricer::select(const RecomputeSettings& settings) {
  if (schedule_.orders_by_time) made_.clear();  // another program for all cuts
  const auto known =
      std::ranges::find_if(made_, [&](const std::unique_ptr<Made>& made) { return is_of(*made, settings); });
  if (known != made_.end()) {
    std::rotate(known, known + 1, made_.end());
    return;
  }
  if (made_.size() == kMostMade) made_.erase(made_.begin());
  made_.push_back(make(settings));
}

void ProgramPricer::take(const std::vector<int>& cuts, bool with_memory) {
  facts_.set(request_, cuts);
  for (std::size_t s = 0; s < costs_.stages.size(); ++s) {
    const int first = s == 0 ? 0 : cuts[s - 1];
    const int last = s + 1 == costs_.stages.size() ? placed_.chain().layers() : cuts[s];
    costs_.stages[s] = with_memory ? full_costs_(first, last) : placed_.chain().stage(first, last);
  }
}

double ProgramPricer::seconds(const std::vector<int>& cuts, const RecomputeSettings& settings) {
  take(cuts, schedule_.orders_by_time);
  select(settings);
  return priced(*made_.back());
}

double ProgramPricer::seconds_as_made(const std::vector<int>& cuts) {
  take(cuts, /*with_memory=*/false);
  return priced(*made_.back());
}

double ProgramPricer::priced(Made& made) {
  const std::int64_t passes = made.simulator.passes();
  const Seconds seconds = goes_on_ ? made.simulator.cycle(costs_) : made.simulator.run(costs_).makespan;
  work_ += made.actions() * kSimulated * (made.simulator.passes() - passes) + kAtLeast;
  return seconds.value;
}

const PeakForms& ProgramPricer::peaks_as_made() {
  Made& made = *made_.back();
  if (!made.peaks) {
    work_ += made.actions() * kProved;
    made.peaks.emplace(made.part ? without_reductions(made.program) : made.program, costs_.ties);
  }
  return *made.peaks;
}

Bytes ProgramPricer::most_memory_as_made(const std::vector<int>& cuts) {
  const PeakForms& forms = peaks_as_made();
  take(cuts, /*with_memory=*/true);
  Bytes most;
  for (std::size_t rank = 0; rank < forms.ranks(); ++rank) {
    std::vector<const StageCosts*> held;
    for (const StageId stage : forms.stages(rank)) held.push_back(&costs_.stages[stage.index()]);
    most = std::max(most, forms.peak(rank, held, costs_.loss));
  }
  work_ += static_cast<std::int64_t>(forms.ranks()) * kPeakWork;
  return most;
}

std::int64_t ProgramPricer::actions_as_made() const { return made_.back()->actions(); }

std::optional<StepBound> ProgramPricer::critical_path() {
  if (!one_program()) return std::nullopt;
  return path_as_made();
}

StepBound ProgramPricer::path_as_made() {
  Made& made = *made_.back();
  work_ += made.actions() * kFollowed + kAtLeast;
  Circuit circuit = goes_on_ ? made.simulator.critical_circuit(costs_)
                             : Circuit{.path = made.simulator.critical_path(costs_)};
  if (made.part) as_whole(circuit.path, *made.part);
  StepBound bound = bound_of(circuit.path, placed_, costs_);
  if (circuit.steps == 1) return bound;
  StepBound share;
  share.add(bound, 1.0 / circuit.steps);
  return share;
}

std::vector<Rank> ProgramPricer::over_cap(const std::vector<int>& cuts, const RecomputeSettings& settings) {
  std::vector<Rank> over;
  if (!capacity_) return over;
  take(cuts, true);
  if (made_.empty() || !is_of(*made_.back(), settings)) select(settings);
  const Made& made = *made_.back();
  work_ += made.actions() * kProved;
  for (const MemoryProof& rank :
       check(made.part ? without_reductions(made.program) : made.program, &costs_).memory) {
    if (rank.peak > *capacity_) over.push_back(made.part ? made.part->ranks[rank.rank.index()] : rank.rank);
  }
  return over;
}

}  // namespace stagecraft::planning
