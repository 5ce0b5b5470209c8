#include "engine/run/resolve/setup.h"

#include "base/files.h"
#include "base/fingerprint.h"
#include "base/json.h"
#include "engine/run/resolve/plan_source.h"
#include "schedules/generators/registry.h"
#include "schedules/generators/schedule.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <fstream>
#include <sstream>

namespace stagecraft {
namespace {

/// Puts in what follows from the rest. Epochs become steps: the same run, and only one of the two may be
/// given.
RunConfig completed(RunConfig config, const Plan& plan, const RunShape& shape) {
  config.gradient_accumulation_steps = config.micro_batches();
  config.train_steps = shape.steps;
  config.epochs.reset();
  config.on_overflow = config.overflow_policy();
  PipelineConfig& pipeline = config.pipeline;
  pipeline.schedule = plan.schedule.name;
  pipeline.vertical_sync = plan.schedule.vertical_sync;
  const Placement placement = plan.placement();
  const auto stages_per_rank = static_cast<int>(placement.stages_of(Rank{0}).size());
  if (find_schedule(plan.schedule.name).placement != PlacementKind::straight)
    pipeline.virtual_stages = stages_per_rank;
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

std::string binary_fingerprint() {
  std::ifstream in("/proc/self/exe", std::ios::binary);
  std::ostringstream bytes;
  bytes << in.rdbuf();
  return fingerprint(bytes.str());
}

}  // namespace

RunSetup::RunSetup(RunConfig config, const std::string& file, TrainingInputs materials, Plan plan,
                   StartPoint start)
    : materials_(std::move(materials)),
      plan_(std::move(plan)),
      placement_(plan_.placement()),
      stage_layers_(stage_layers(plan_, materials_.model)),
      start_(std::move(start)),
      shape_(run_shape(config, *materials_.data, find_schedule(plan_.schedule.name).synchronous)) {
  if (shape_.steps < 1) {
    throw InputError({file, "/epochs"},
                     "the data has no whole batch, so there is no step to make; use a smaller "
                     "train_batch_size, or data.drop_last false");
  }
  shape_.first_step = start_.step;
  shape_.validation_owed = start_.validation_owed;
  config_ = completed(std::move(config), plan_, shape_);
  programs_ = std::make_unique<RunPrograms>(plan_, shape_, config_.comms.slots_per_channel);
}

std::string RunSetup::rank_name(Rank rank) const {
  std::vector<int> stages;
  for (const StageId stage : placement_.stages_of(rank)) stages.push_back(stage.value);
  return fmt::format("rank {}: stage{} {}", rank.value, stages.size() == 1 ? "" : "s",
                     fmt::join(stages, ", "));
}

std::string RunSetup::fingerprint() const {
  return fmt::format("binary {}, config {}, plan {}, data {}", binary_fingerprint(),
                     stagecraft::fingerprint(json::write(config_).dump()),
                     stagecraft::fingerprint(json::write(plan_).dump()), materials_.data->fingerprint());
}

}  // namespace stagecraft
