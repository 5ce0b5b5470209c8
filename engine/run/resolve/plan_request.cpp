#include "engine/run/resolve/plan_request.h"

#include "base/input_path.h"
#include "base/text.h"
#include "engine/device/accelerators.h"
#include "engine/run/resolve/device_reserve.h"
#include "engine/run/resolve/devices.h"
#include "engine/run/resolve/launcher.h"
#include "engine/run/resolve/model_plan.h"
#include "schedules/generators/registry.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

namespace stagecraft {

namespace {

/// Between threads or processes of one machine, where nothing was measured: memory copies with a wake-up.
constexpr Link kLocalLink{Seconds{20e-6}, 4e9};

const Schedule& schedule_asked(const PipelineConfig& pipeline) {
  return find_schedule(pipeline.schedule.value_or("1f1b"));
}

int stages_per_rank(const PipelineConfig& pipeline) {
  return stagecraft::stages_per_rank(pipeline, schedule_asked(pipeline));
}

int ranks_of(const std::vector<int>& widths) { return std::accumulate(widths.begin(), widths.end(), 0); }

int ranks_without_launcher(const RunConfig& config) {
  const PipelineConfig& pipeline = config.pipeline;
  if (!pipeline.widths.empty()) return ranks_of(pipeline.widths);
  const std::optional<int> stages =
      pipeline.cuts.empty() ? pipeline.stages : static_cast<int>(pipeline.cuts.size()) + 1;
  if (stages) return std::max(1, *stages / stages_per_rank(pipeline));
  const int cores = transport::count_cores().usable;
  if (!pipeline.ranks) return cores;
  // Threads may outnumber cores: the fewest ranks are always there.
  const RankBounds& bounds = *pipeline.ranks;
  const int fewest = (bounds.min + bounds.multiple_of - 1) / bounds.multiple_of * bounds.multiple_of;
  return std::max(fewest, bounds.most_of(cores));
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
    if (positions == 0 && (world || asked.ranks))
      request.stages = (world ? world->ranks : ranks_without_launcher(config)) * stages_per_rank(asked);
  }
  return request;
}

std::optional<World> usable_world(const RunConfig& config, const std::string& file,
                                  const std::optional<World>& launched) {
  if (!launched || !config.pipeline.ranks) return launched;
  const RankBounds& bounds = *config.pipeline.ranks;
  const int ranks = bounds.most_of(launched->ranks);
  if (ranks == 0) {
    const std::string of = bounds.multiple_of > 1 ? fmt::format(", in {}s", bounds.multiple_of) : "";
    throw InputError({file, "/pipeline/ranks"},
                     fmt::format("at least {}{}, but {} {} launched", plural(bounds.min, "rank"), of,
                                 launched->ranks, launched->ranks == 1 ? "was" : "were"));
  }
  return World{ranks, std::min(ranks, launched->on_this_machine)};
}

int threads_for(const RunConfig& config, const std::optional<World>& world, int ranks) {
  if (config.threads_per_rank > 0) return config.threads_per_rank;
  return world ? threads_per_rank(transport::count_cores(), 1, world->on_this_machine)
               : threads_per_rank(transport::count_cores(), ranks, 1);
}

std::string unmeasured_links(const RunConfig& config, const Profile& profile) {
  if (config.device == DeviceKind::cpu || config.cluster || profile.link) return "";
  return fmt::format(
      "links between GPUs were not measured: the plan takes {:.0f} us and {:.0f} GB/s for each, which is "
      "little for NVLink. Name a cluster (configs/clusters), or plan from a profile with links (`stagecraft "
      "profile CONFIG --links -o profile.json`, under the run's launcher)",
      kLocalLink.latency.value * 1e6, kLocalLink.bytes_per_second / 1e9);
}

Cluster plan_cluster(const RunConfig& config, const std::string& file, const Model& model,
                     const Profile& profile, const std::optional<World>& world) {
  if (config.cluster) {
    const InputPlace key{file, "/cluster"};
    require_there(*config.cluster, key);
    return read_at_key(key, [&] { return read_cluster(*config.cluster); });
  }
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

}  // namespace stagecraft
