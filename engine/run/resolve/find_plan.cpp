#include "engine/run/resolve/find_plan.h"

#include "base/files.h"
#include "base/input_path.h"
#include "engine/run/resolve/devices.h"
#include "engine/run/resolve/quick_profile.h"
#include "partitioner/search/planner.h"

namespace stagecraft {

FoundPlan find_plan(const RunConfig& config, const std::string& file, const TrainingInputs& inputs,
                    const std::string& plan_path, const std::optional<World>& world,
                    const std::string& kept) {
  const std::string path = plan_path.empty() ? config.pipeline.plan.value_or("") : plan_path;
  if (!path.empty()) {
    if (!plan_path.empty()) return {.plan = read_plan(path), .source = path};
    const InputPlace key{file, "/pipeline/plan"};
    require_there(path, key);
    return {.plan = read_at_key(key, [&] { return read_plan(path); }), .source = path};
  }
  const PlanRequest request = plan_request(config, world);
  check_stages(request, config.pipeline, file, world);
  const int threads = rank_threads(config, world);
  const at::Device device = prepare_device(config, file, /*machine_rank=*/0);
  FoundPlan found{.plan = {}, .source = kMadeNow, .threads = threads};
  if (!kept.empty() && is_there(kept)) found.profile = read_profile(kept);
  if (found.profile && is_of_run(*found.profile, config, inputs, threads, device)) {
    found.notes.push_back(kept +
                          " of an earlier start has what the plan is made from; remove it to measure again");
  } else {
    found.profile = quick_profile(config, file, inputs, threads, device);
  }
  const Profile& profile = *found.profile;
  if (std::string links = unmeasured_links(config, profile); !links.empty())
    found.notes.push_back(std::move(links));
  const Cluster cluster = plan_cluster(config, file, inputs.model, profile, world);
  try {
    found.plan = make_plan(profile, cluster, request).best.plan;
  } catch (const InputError& error) {
    throw InputError({file, "/pipeline"}, error.what());
  }
  return found;
}

}  // namespace stagecraft
