// Run configurations for the verbs that plan and prove: their plan, as `train` would make or find it, and
// their schema.

#include "base/json.h"
#include "cli/input_program.h"
#include "cli/output.h"
#include "cli/plan_profile.h"
#include "cli/request_options.h"
#include "cli/run_schema.h"
#include "cli/search_line.h"
#include "engine/config/config.h"
#include "engine/device/accelerators.h"
#include "engine/run/resolve/devices.h"
#include "engine/run/resolve/memory_check.h"
#include "engine/run/resolve/plan_request.h"
#include "engine/run/resolve/quick_profile.h"
#include "engine/run/resolve/resolve.h"
#include "models/tensors/libtorch_error.h"
#include "schedules/generators/schedule.h"

#include <fmt/format.h>

#include <vector>

namespace stagecraft::cli {
namespace {

/// The keys of one model's layers must be the ones that were measured.
void check_profile(const Profile& profile, const std::string& profile_path, const Model& model) {
  if (!profile.model_fingerprint.empty() && profile.model_fingerprint != model.fingerprint) {
    throw InputError({profile_path, "/model_fingerprint"},
                     fmt::format("the profile is of another model ({}) than the config's ({})", profile.model,
                                 model.name));
  }
  if (profile.dtype != model.precision.name()) {
    throw InputError({profile_path, "/dtype"}, fmt::format("the profile is of {}, the config says {}",
                                                           profile.dtype, model.precision.name()));
  }
}

}  // namespace

Json run_schema() { return run_config_schema(); }

InputProgram config_input(const std::string& path, const Json& /*json*/, const InputRequest& request) {
  const RunConfig config = read_run_config(path);
  Plan plan =
      named([] { return ""; },
            [&] {
              const TrainingInputs run_inputs = open_training_inputs(config, path);
              FoundPlan found = find_plan(config, path, run_inputs, "", std::nullopt);
              const int threads =
                  found.threads.value_or(threads_for(config, std::nullopt, found.plan.placement().world()));
              return resolve(config, path, run_inputs, std::move(found), {}, std::nullopt, threads).run.plan;
            });
  return plan_input(path, std::move(plan), request);
}

namespace {

/// The name of this machine's first, for a run on GPUs; empty where there is none.
std::string gpu_here(const RunConfig& config) {
  if (config.device == DeviceKind::cpu) return "";
  const std::vector<Accelerator> devices = accelerators().devices;
  return devices.empty() ? "" : devices.front().name;
}

PlanInputs inputs_of(const RunConfig& config, const std::string& config_path, const std::string& profile_path,
                     const std::string& cluster_path) {
  const TrainingInputs run_inputs = open_training_inputs(config, config_path);
  PlanInputs inputs;
  inputs.request = plan_request(config, std::nullopt);
  if (!config.pipeline.schedule) check_schedule(config, inputs.request.schedule.name, config_path);
  if (profile_path.empty()) {
    SearchLine line;
    line.begin("measuring layers: up to 15 s per micro-batch size");
    inputs.profile = quick_profile(config, config_path, run_inputs, rank_threads(config, std::nullopt),
                                   prepare_device(config, config_path, /*machine_rank=*/0));
  } else {
    inputs.profile = read_profile(profile_path);
    check_profile(inputs.profile, profile_path, run_inputs.model);
    const bool elsewhere = !cluster_path.empty() || config.cluster;
    if (const std::string other = other_device(inputs.profile, config.device == DeviceKind::cuda,
                                               elsewhere ? "" : gpu_here(config));
        !other.empty()) {
      note(fmt::format("{}: {}", profile_path, other));
    }
  }
  // What was measured elsewhere is for there.
  const bool here =
      profile_path.empty() && cluster_path.empty() && !config.cluster && config.device == DeviceKind::cpu;
  if (here) inputs.machine = process_memory({}).limits;
  if (cluster_path.empty()) {
    if (const std::string links = unmeasured_links(config, inputs.profile); !links.empty()) note(links);
  }
  inputs.cluster = cluster_path.empty()
                       ? plan_cluster(config, config_path, run_inputs.model, inputs.profile, std::nullopt)
                       : read_cluster(cluster_path);
  return inputs;
}

}  // namespace

PlanInputs config_plan_inputs(const std::string& config_path, const std::vector<std::string>& overrides,
                              const std::string& profile_path, const std::string& cluster_path) {
  const RunConfig config = read_run_config(config_path, overrides);
  return named([] { return ""; }, [&] { return inputs_of(config, config_path, profile_path, cluster_path); });
}

}  // namespace stagecraft::cli
