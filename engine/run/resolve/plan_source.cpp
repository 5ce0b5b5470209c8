#include "engine/run/resolve/plan_source.h"

#include "base/text.h"
#include "engine/core/links.h"
#include "engine/device/accelerators.h"
#include "engine/run/resolve/device_reserve.h"
#include "engine/run/resolve/devices.h"
#include "engine/run/resolve/launcher.h"
#include "engine/run/resolve/plan_costs.h"
#include "partitioner/plan/cluster.h"
#include "partitioner/plan/skips.h"
#include "partitioner/plan/ties.h"
#include "partitioner/search/planner.h"
#include "profiler/tied_weights.h"
#include "schedules/generators/registry.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

namespace stagecraft {
namespace {

/// Between threads or processes of one machine, where nothing was measured: memory copies with a wake-up.
constexpr Link kLocalLink{Seconds{20e-6}, 4e9};

void refuse_at(const std::string& file, const std::string& pointer, const std::string& config,
               const std::string& plan, const std::string& plan_file) {
  throw InputError(
      {file, pointer},
      fmt::format("{}, but the plan {} has {}; leave it out, or make another plan", config, plan_file, plan));
}

void refuse_key(const std::string& file, const char* key, const std::string& config, const std::string& plan,
                const std::string& plan_file) {
  refuse_at(file, fmt::format("/pipeline/{}", key), config, plan, plan_file);
}

bool agrees_on_norm(const RunConfig& config, const std::string& schedule) {
  return find_schedule(schedule).clips && config.gradient_norm;
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
  const auto refuse = [&](const char* pointer, const std::string& why) {
    throw InputError({plan_file, pointer}, why);
  };
  if (!plan.model_fingerprint.empty() && plan.model_fingerprint != model.fingerprint) {
    const std::string which =
        plan.model == model.name
            ? fmt::format("than the run's, though both are {}: their layers, sizes or weights differ",
                          model.name)
            : fmt::format("({}) than the run's ({})", plan.model, model.name);
    refuse("/model_fingerprint",
           fmt::format("the plan is for another model {}; make one with `stagecraft plan {} -o plan.json`",
                       which, file));
  }
  const int layers = static_cast<int>(model.layers.size());
  if (plan.layers() != layers && plan.layers() != layers + 1) {
    refuse("/stages", fmt::format("the plan has {}, but {} has {} (and the loss)",
                                  plural(plan.layers(), "layer"), model.name, layers));
  }
  if (plan.stages.back().first_layer >= layers) {
    refuse("/stages", "the last stage has no layer but the loss; give it one of the model's");
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

namespace {

const Schedule& schedule_asked(const PipelineConfig& pipeline) {
  return find_schedule(pipeline.schedule.value_or("1f1b"));
}

int stages_per_rank(const PipelineConfig& pipeline) {
  return stagecraft::stages_per_rank(pipeline, schedule_asked(pipeline));
}

}  // namespace

PlanRequest plan_request(const RunConfig& config, const std::optional<World>& world) {
  const PipelineConfig& asked = config.pipeline;
  PlanRequest request;
  request.micro_batch_size = config.micro_batch_size;
  request.micro_batches = config.micro_batches();
  const std::string schedule = schedule_asked(asked).name;
  request.schedule = {.name = schedule,
                      .vertical_sync = asked.vertical_sync.value_or(false),
                      .agree_norm = agrees_on_norm(config, schedule),
                      .warmup_extra = asked.warmup_extra.value_or(0)};
  request.recompute = one_setting(config.activation_checkpointing.recompute.value_or(RecomputeAsked::none));
  request.cuts = asked.cuts;
  request.stages = asked.stages;
  request.virtual_stages = asked.virtual_stages;
  request.widths = asked.widths;
  if (!asked.stages && asked.cuts.empty()) {
    const int positions = static_cast<int>(asked.widths.size());
    if (positions > 0) request.stages = positions * stages_per_rank(asked);
    if (world && positions == 0) request.stages = world->ranks * stages_per_rank(asked);
  }
  return request;
}

namespace {

int ranks_of(const std::vector<int>& widths) { return std::accumulate(widths.begin(), widths.end(), 0); }

int ranks_without_launcher(const RunConfig& config) {
  const PipelineConfig& pipeline = config.pipeline;
  if (!pipeline.widths.empty()) return ranks_of(pipeline.widths);
  const std::optional<int> stages =
      pipeline.cuts.empty() ? pipeline.stages : static_cast<int>(pipeline.cuts.size()) + 1;
  return stages ? std::max(1, *stages / stages_per_rank(pipeline)) : transport::count_cores().usable;
}

int threads_for(const RunConfig& config, const std::optional<World>& world, int ranks) {
  if (config.threads_per_rank > 0) return config.threads_per_rank;
  return world ? threads_per_rank(transport::count_cores(), 1, world->on_this_machine)
               : threads_per_rank(transport::count_cores(), ranks, 1);
}

}  // namespace

std::string unmeasured_links(const RunConfig& config, const Profile& profile) {
  if (config.device == DeviceKind::cpu || config.cluster || profile.link) return "";
  return fmt::format(
      "links between GPUs were not measured: the plan takes {:.0f} us and {:.0f} GB/s for each, which is "
      "little for NVLink. Name a cluster (configs/clusters), or plan from a profile with links (`stagecraft "
      "profile CONFIG --links -o profile.json`, under the run's launcher)",
      kLocalLink.latency.value * 1e6, kLocalLink.bytes_per_second / 1e9);
}

Cluster plan_cluster(const RunConfig& config, const Model& model, const Profile& profile,
                     const std::optional<World>& world) {
  if (config.cluster) return read_cluster(*config.cluster);
  const Link link = profile.link ? profile.link->link : kLocalLink;
  Cluster cluster = flat_cluster("this machine", world ? world->ranks : ranks_without_launcher(config), link);
  if (config.device == DeviceKind::cpu) return cluster;
  const auto cards = static_cast<int>(accelerators().devices.size());
  const int ranks_here = world ? world->on_this_machine : cluster.devices();
  if (cards > 0)
    cap_at_card(cluster, config, model, device_memory(0).available, (ranks_here + cards - 1) / cards);
  return cluster;
}

int rank_threads(const RunConfig& config, const std::optional<World>& world) {
  return threads_for(config, world, ranks_without_launcher(config));
}

namespace {

/// A launcher started so many ranks: the stages the config asks for must need as many.
void check_stages(const PlanRequest& request, const PipelineConfig& pipeline, const std::string& file,
                  const std::optional<World>& world) {
  if (!world) return;
  if (!pipeline.widths.empty()) {
    const int needed = ranks_of(pipeline.widths);
    if (needed == world->ranks) return;
    throw InputError(
        {file, "/pipeline/widths"},
        fmt::format("stages of {} replicas need {}, but {} {} launched", fmt::join(pipeline.widths, ", "),
                    plural(needed, "rank"), world->ranks, world->ranks == 1 ? "was" : "were"));
  }
  const int per_rank = stages_per_rank(pipeline);
  const bool cut = !request.cuts.empty();
  const int fitting = world->ranks * per_rank;
  const int stages = cut ? static_cast<int>(request.cuts.size()) + 1 : request.stages.value_or(fitting);
  if (stages == fitting) return;
  std::string needed = plural(stages, "rank");
  if (per_rank > 1) needed = fmt::format("one rank per {} stages", per_rank);
  std::string remedy =
      cut ? "write " + plural(fitting - 1, "cut") : fmt::format("write \"stages\": {}", fitting);
  if (stages % per_rank == 0) remedy = fmt::format("launch {}, or {}", stages / per_rank, remedy);
  throw InputError(
      {file, cut ? "/pipeline/cuts" : "/pipeline/stages"},
      fmt::format("{} {} {}, but {} {} launched: {}", plural(stages, "stage"), stages == 1 ? "needs" : "need",
                  needed, world->ranks, world->ranks == 1 ? "was" : "were", remedy));
}

/// Measures, then plans.
ResolvedPlan plan_now(const RunConfig& config, const std::string& file, const TrainingInputs& materials,
                      const std::optional<World>& world) {
  const PlanRequest request = plan_request(config, world);
  check_stages(request, config.pipeline, file, world);
  ResolvedPlan resolved;
  resolved.profile = quick_profile(config, file, materials, rank_threads(config, world),
                                   prepare_device(config, file, /*machine_rank=*/0));
  if (std::string links = unmeasured_links(config, *resolved.profile); !links.empty())
    resolved.notes.push_back(std::move(links));
  try {
    resolved.plan =
        make_plan(*resolved.profile, plan_cluster(config, materials.model, *resolved.profile, world), request)
            .best.plan;
  } catch (const InputError& error) {
    throw InputError({file, "/pipeline"}, error.what());
  }
  return resolved;
}

}  // namespace

namespace {

/// The model knows best which stages hold its tied weights.
void follow_ties(const RunConfig& config, const std::string& file, const Model& model,
                 const std::string& source, Plan& plan) {
  Plan tied = plan;
  set_ties(tied, tied_weights(model));
  if (tied.ties.empty() && plan.ties.empty()) return;
  if (tied.ties != plan.ties) tied.predicted.reset();
  validate(tied, source);
  if (!find_schedule(plan.schedule.name).synchronous && config.overflow_policy() == OnOverflow::skip) {
    throw InputError(
        {file, "/on_overflow"},
        fmt::format("{} lets each stage leave out an update by itself, and the stages that hold {} "
                    "must make the same ones: use a synchronous schedule, \"stop\", or capture the "
                    "model with --untie",
                    plan.schedule.name, model.ties.front().name));
  }
  plan = std::move(tied);
}

/// The model knows best what its stages pass by.
void follow_skips(const RunConfig& config, const Model& model, const std::string& source, Plan& plan,
                  std::vector<std::string>& notes) {
  const std::vector<std::pair<int, int>> layers = stage_layers(plan, model);
  const auto routed = [&](Skips skips) {
    Plan changed = plan;
    set_skips(changed, link_bytes(model, layers, plan.micro_batch_size, skips == Skips::direct));
    changed.predicted.reset();
    validate(changed, source);
    if (changed.costs) changed.predicted = predict(changed);
    return changed;
  };
  const bool bypasses =
      !skips_of(links_of(model, layers, boundaries(model, plan.micro_batch_size), true)).empty();
  if (!bypasses && plan.skips.empty()) return;
  const bool takes = !find_schedule(plan.schedule.name).searched;
  const Skips skips = config.pipeline.skips.value_or(takes ? Skips::direct : Skips::relay);
  try {
    plan = routed(skips);
  } catch (const RefusedError& error) {
    if (config.pipeline.skips || skips == Skips::relay) throw;
    notes.push_back(fmt::format("values go from stage to stage; directly they do not fit: {}", error.what()));
    plan = routed(Skips::relay);
  }
}

}  // namespace

ResolvedPlan resolve_plan(const RunConfig& config, const std::string& file, const TrainingInputs& materials,
                          const std::string& plan_path, const std::optional<World>& world) {
  const std::string source = plan_path.empty() ? config.pipeline.plan.value_or("") : plan_path;
  ResolvedPlan resolved;
  if (source.empty()) {
    resolved = plan_now(config, file, materials, world);
  } else {
    resolved.plan = read_plan(source);
  }
  check_plan(resolved.plan, source.empty() ? "the plan made now" : source, config, file, materials.model,
             world);
  check_known_costs(resolved.plan, source.empty() ? "the plan made now" : source, materials.model);
  check_schedule(config, resolved.plan.schedule.name, file);
  resolved.threads = resolved.profile ? resolved.profile->threads
                                      : threads_for(config, world, resolved.plan.placement().world());
  if (resolved.plan.threads.value_or(resolved.threads) != resolved.threads) {
    resolved.notes.push_back(fmt::format(
        "{} was measured with {} operator threads per rank, this run has {}: its predicted times may be off",
        source, *resolved.plan.threads, resolved.threads));
  }
  if (resolved.plan.micro_batches != config.micro_batches()) {
    resolved.notes.push_back(
        fmt::format("{} was made for {} micro-batches per step, this run has {}; it is priced again", source,
                    resolved.plan.micro_batches, config.micro_batches()));
    resolved.plan.micro_batches = config.micro_batches();
    resolved.plan.predicted.reset();
  }
  if (follow_optimizer(resolved.plan, materials.model, *materials.optimizer) && !source.empty()) {
    resolved.notes.push_back(
        fmt::format("{} has the state of another optimizer in its costs than {} keeps; it is priced again",
                    source, config.optimizer.type.name()));
  }
  const std::vector<std::pair<int, int>> layers = stage_layers(resolved.plan, materials.model);
  for (std::size_t s = 0; s < layers.size(); ++s) {  // the model knows best
    resolved.plan.stages[s].loads =
        !materials.model.fields_of(layers[s].first, layers[s].second, nullptr).empty();
  }
  follow_ties(config, file, materials.model, source.empty() ? "the plan made now" : source, resolved.plan);
  follow_skips(config, materials.model, source.empty() ? "the plan made now" : source, resolved.plan,
               resolved.notes);
  follow_gradient_norm(config, resolved.plan);
  if (resolved.plan.costs && !resolved.plan.predicted) resolved.plan.predicted = predict(resolved.plan);
  return resolved;
}

void follow_gradient_norm(const RunConfig& config, Plan& plan) {
  const bool agrees = agrees_on_norm(config, plan.schedule.name);
  if (plan.schedule.agree_norm == agrees) return;
  plan.schedule.agree_norm = agrees;
  plan.predicted.reset();
  if (plan.costs) plan.predicted = predict(plan);
}

std::vector<std::pair<int, int>> stage_layers(const Plan& plan, const Model& model) {
  const int layers = static_cast<int>(model.layers.size());
  std::vector<std::pair<int, int>> stages;
  for (const StagePlan& stage : plan.stages) {
    stages.emplace_back(std::min(stage.first_layer, layers), std::min(stage.last_layer, layers));
  }
  return stages;
}

}  // namespace stagecraft
