#include "engine/run/resolve/plan_agreement.h"

#include "base/text.h"
#include "engine/run/resolve/training_inputs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace stagecraft {
namespace {

void refuse_at(const std::string& file, const std::string& pointer, const std::string& config,
               const std::string& plan, const std::string& plan_file) {
  throw PlanMismatch({file, pointer}, fmt::format("{}, but {} has {}", config, plan_file, plan),
                     "leave it out, or make another plan");
}

void refuse_key(const std::string& file, const char* key, const std::string& config, const std::string& plan,
                const std::string& plan_file) {
  refuse_at(file, fmt::format("/pipeline/{}", key), config, plan, plan_file);
}

/// Keys beside a plan must not ask for something else.
void check_agreement(const Plan& plan, const std::string& plan_file, const RunConfig& config,
                     const std::string& file) {
  const PipelineConfig& asked = config.pipeline;
  const int stages = static_cast<int>(plan.stages.size());
  if (asked.schedule && *asked.schedule != plan.schedule.name) {
    refuse_key(file, "schedule", *asked.schedule, plan.schedule.name, plan_file);
  }
  if (asked.stages && *asked.stages != stages) {
    refuse_key(file, "stages", fmt::format("{}", *asked.stages), fmt::format("{}", stages), plan_file);
  }
  if (asked.vertical_sync && *asked.vertical_sync != plan.schedule.vertical_sync) {
    refuse_key(file, "vertical_sync", fmt::format("{}", *asked.vertical_sync),
               fmt::format("{}", plan.schedule.vertical_sync), plan_file);
  }
  const Placement placement = plan.placement();
  const auto stages_per_rank = static_cast<int>(placement.stages_of(Rank{0}).size());
  if (asked.virtual_stages && *asked.virtual_stages != stages_per_rank) {
    refuse_key(file, "virtual_stages", fmt::format("{}", *asked.virtual_stages),
               fmt::format("{} per rank", stages_per_rank), plan_file);
  }
  std::vector<int> widths;
  for (int s = 0; s < stages / stages_per_rank; ++s) widths.push_back(placement.replicas(StageId{s}));
  if (!asked.widths.empty() && asked.widths != widths) {
    refuse_key(file, "widths", fmt::format("{}", asked.widths), fmt::format("{}", widths), plan_file);
  }
  if (asked.warmup_extra && *asked.warmup_extra != plan.schedule.warmup_extra) {
    refuse_key(file, "warmup_extra", fmt::format("{}", *asked.warmup_extra),
               fmt::format("{}", plan.schedule.warmup_extra), plan_file);
  }
  const std::optional<Recompute> recompute =
      one_setting(config.activation_checkpointing.recompute.value_or(RecomputeAsked::automatic));
  for (int s = 0; recompute && s < stages; ++s) {
    const Recompute planned = plan.stages[static_cast<std::size_t>(s)].recompute;
    if (planned == *recompute) continue;
    refuse_at(file, "/activation_checkpointing/recompute", enum_name(*recompute),
              fmt::format("{} on stage {}", enum_name(planned), s), plan_file);
  }
  std::vector<int> cuts;
  for (int s = 1; s < stages; ++s) cuts.push_back(plan.stages[static_cast<std::size_t>(s)].first_layer);
  if (!asked.cuts.empty() && asked.cuts != cuts) {
    refuse_key(file, "cuts", fmt::format("{}", asked.cuts), fmt::format("{}", cuts), plan_file);
  }
}

}  // namespace

void check_plan(const Plan& plan, const std::string& plan_file, const RunConfig& config,
                const std::string& file, const Model& model, const std::optional<World>& world) {
  const auto refuse = [&](const char* pointer, const std::string& why, const std::string& remedy = "") {
    throw PlanMismatch({plan_file, pointer}, why, remedy);
  };
  if (!plan.model_fingerprint.empty() && plan.model_fingerprint != model.fingerprint) {
    const std::string which =
        plan.model == model.name
            ? fmt::format("than the run's, though both are {}: their layers, sizes or weights differ",
                          model.name)
            : fmt::format("({}) than the run's ({})", plan.model, model.name);
    refuse("/model_fingerprint", fmt::format("the plan is for another model {}", which),
           fmt::format("make one with `stagecraft plan {} -o plan.json`", file));
  }
  const int layers = static_cast<int>(model.layers.size());
  if (plan.layers() != layers && plan.layers() != layers + 1) {
    refuse("/stages", fmt::format("the plan has {}, but {} has {} (and the loss)",
                                  plural(plan.layers(), "layer"), model.name, layers));
  }
  if (plan.stages.back().first_layer >= layers) {
    refuse("/stages", "the last stage has no layer but the loss", "give it one of the model's");
  }
  if (const std::string dtype = precision_of(config).name(); plan.dtype != dtype) {
    refuse("/dtype", fmt::format("the plan is for {}, the run for {}", plan.dtype, dtype));
  }
  if (plan.micro_batch_size != config.micro_batch_size) {
    refuse("/micro_batch_size",
           fmt::format("the plan is for micro-batches of {}, but {} has train_micro_batch_size_per_gpu {}",
                       plural(plan.micro_batch_size, "sample"), file, config.micro_batch_size));
  }
  const int ranks = plan.placement().world();
  if (world && world->ranks != ranks) {
    refuse("/stages", fmt::format("the plan needs {}, but {} {} launched", plural(ranks, "rank"),
                                  world->ranks, world->ranks == 1 ? "was" : "were"));
  }
  check_agreement(plan, plan_file, config, file);
}

}  // namespace stagecraft
