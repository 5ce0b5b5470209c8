#include "engine/run/resolve/find_plan.h"

#include "engine/run/resolve/devices.h"
#include "engine/run/resolve/quick_profile.h"
#include "partitioner/search/planner.h"

namespace stagecraft {

FoundPlan find_plan(const RunConfig& config, const std::string& file, const TrainingInputs& inputs,
                    const std::string& plan_path, const std::optional<World>& world) {
  const std::string path = plan_path.empty() ? config.pipeline.plan.value_or("") : plan_path;
  if (!path.empty()) return {.plan = read_plan(path), .source = path};
  const PlanRequest request = plan_request(config, world);
  check_stages(request, config.pipeline, file, world);
  const Profile profile = quick_profile(config, file, inputs, rank_threads(config, world),
                                        prepare_device(config, file, /*machine_rank=*/0));
  FoundPlan found{.plan = {}, .source = kMadeNow, .threads = profile.threads};
  if (std::string links = unmeasured_links(config, profile); !links.empty())
    found.notes.push_back(std::move(links));
  try {
    found.plan = make_plan(profile, plan_cluster(config, inputs.model, profile, world), request).best.plan;
  } catch (const InputError& error) {
    throw InputError({file, "/pipeline"}, error.what());
  }
  return found;
}

}  // namespace stagecraft
