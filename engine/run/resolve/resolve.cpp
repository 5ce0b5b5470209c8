#include "engine/run/resolve/resolve.h"

#include "base/json.h"
#include "engine/run/resolve/model_plan.h"
#include "engine/run/resolve/plan_agreement.h"
#include "schedules/generators/registry.h"

#include <fmt/format.h>

#include <utility>

namespace stagecraft {
namespace {

/// Puts in what follows from the rest. Epochs become steps: the same run, and only one of the two may be
/// given.
RunConfig completed(RunConfig config, const Plan& plan, std::int64_t steps) {
  config.gradient_accumulation_steps = config.micro_batches();
  config.train_steps = steps;
  config.epochs.reset();
  config.on_overflow = config.overflow_policy();
  PipelineConfig& pipeline = config.pipeline;
  pipeline.schedule = plan.schedule.name;
  pipeline.vertical_sync = plan.schedule.vertical_sync;
  const Placement placement = plan.placement();
  const auto stages_per_rank = static_cast<int>(placement.stages_of(Rank{0}).size());
  if (find_schedule(plan.schedule.name).placement != PlacementKind::straight)
    pipeline.virtual_stages = stages_per_rank;
  pipeline.ranks.reset();
  pipeline.widths.clear();  // which ranks they are is in the plan of the run directory
  for (int s = 0; placement.replicated() && s < placement.stages() / stages_per_rank; ++s) {
    pipeline.widths.push_back(placement.replicas(StageId{s}));
  }
  pipeline.warmup_extra = plan.schedule.warmup_extra;
  pipeline.stages = static_cast<int>(plan.stages.size());
  pipeline.cuts.clear();
  for (std::size_t s = 1; s < plan.stages.size(); ++s) pipeline.cuts.push_back(plan.stages[s].first_layer);
  // Stages that differ are in the plan of the run directory alone.
  const Recompute recompute = plan.stages.front().recompute;
  if (plan.recompute() == RecomputeSettings(plan.stages.size(), recompute)) {
    config.activation_checkpointing.recompute = asked_as(recompute);
  }
  pipeline.update_interval = config.micro_batches();
  pipeline.plan.reset();  // its stages are above, and the run directory has it
  if (config.profiler.micro_batch_sizes.empty())
    config.profiler.micro_batch_sizes = {config.micro_batch_size};
  return config;
}

/// The plan that the others will read: a time may lose its last bit on the way through text, and schedules
/// that order by time must give every rank the same program.
Plan as_written(Plan plan) {
  for (Json text = json::write(plan);;) {
    plan = json::read<Plan>(text, {"plan", ""});
    Json again = json::write(plan);
    if (again == text) return plan;
    text = std::move(again);
  }
}

}  // namespace

Resolution resolve(RunConfig config, const std::string& file, const TrainingInputs& inputs, FoundPlan found,
                   StartPoint start, const std::optional<World>& world, int threads) {
  Plan& plan = found.plan;
  check_plan(plan, found.source, config, file, inputs.model, world);
  check_known_costs(plan, found.source, inputs.model);
  // Whoever read the config has looked at a schedule that it names.
  if (!config.pipeline.schedule) check_schedule(config, plan.schedule.name, file);
  if (config.threads_per_rank == 0) config.threads_per_rank = threads;
  Resolution resolution{.run = {}, .notes = std::move(found.notes)};
  if (plan.threads.value_or(config.threads_per_rank) != config.threads_per_rank) {
    resolution.notes.push_back(fmt::format(
        "{} was measured with {} operator threads per rank, this run has {}: its predicted times may be off",
        found.source, *plan.threads, config.threads_per_rank));
  }
  for (std::string& note : follow_model(plan, found.source, config, file, inputs))
    resolution.notes.push_back(std::move(note));
  const bool synchronous = find_schedule(plan.schedule.name).synchronous;
  const std::int64_t steps = run_shape(config, *inputs.data, synchronous, file).steps;
  if (steps < 1) {
    throw InputError({file, "/epochs"},
                     "the data has no whole batch, so there is no step to make; use a smaller "
                     "train_batch_size, or data.drop_last false");
  }
  resolution.run = {completed(std::move(config), plan, steps), as_written(std::move(plan)), std::move(start)};
  return resolution;
}

}  // namespace stagecraft
