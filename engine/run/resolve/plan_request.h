#pragma once

// What a config and a launcher ask of the planner.

#include "engine/config/config.h"
#include "models/model.h"
#include "partitioner/plan/cluster.h"
#include "partitioner/plan/profile.h"
#include "partitioner/search/planner.h"

#include <optional>
#include <string>

namespace stagecraft {

/// The ranks that a launcher started, a process each.
struct World {
  int ranks = 1;
  int on_this_machine = 1;
};

/// What the run uses of `launched`, as pipeline.ranks says. `file` names the config. Throws InputError where that is
/// nothing.
[[nodiscard]] std::optional<World> usable_world(const RunConfig& config, const std::string& file,
                                                const std::optional<World>& launched);

/// Operator threads of a rank, the same in the profile that a plan is made from and in the run: the config's,
/// or the cores over the ranks. Without a launcher those are the config's stages, or one per core where it
/// leaves them open, as plan_cluster offers them.
[[nodiscard]] int rank_threads(const RunConfig& config, const std::optional<World>& world);

/// The same of a plan for `ranks` ranks.
[[nodiscard]] int threads_for(const RunConfig& config, const std::optional<World>& world, int ranks);

/// What the planner is asked for: the config's schedule, stages and cuts, one stage a launched rank where it
/// has neither.
[[nodiscard]] PlanRequest plan_request(const RunConfig& config, const std::optional<World>& world);

/// Throws InputError where a launcher started another number of ranks than the stages that `request`, of the same
/// config, asks for need. `file` names the config.
void check_stages(const PlanRequest& request, const PipelineConfig& pipeline, const std::string& file,
                  const std::optional<World>& world);

/// Where ranks compute on GPUs whose links plan_cluster() has nothing to know by: what people should be told, and
/// what to do. Otherwise "".
[[nodiscard]] std::string unmeasured_links(const RunConfig& config, const Profile& profile);

/// The config's cluster, or this machine with `world` (absent: as many as it has cores) ranks; on GPUs with what a card
/// has free for each (device_reserve.h).
[[nodiscard]] Cluster plan_cluster(const RunConfig& config, const std::string& file, const Model& model,
                                   const Profile& profile, const std::optional<World>& world);

}  // namespace stagecraft
