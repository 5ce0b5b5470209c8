#include "engine/run/resolve/setup.h"

#include "base/files.h"
#include "base/fingerprint.h"
#include "base/json.h"
#include "engine/run/resolve/model_plan.h"
#include "schedules/generators/registry.h"
#include "schedules/generators/schedule.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <fstream>
#include <sstream>

namespace stagecraft {
namespace {

std::string binary_fingerprint() {
  std::ifstream in("/proc/self/exe", std::ios::binary);
  std::ostringstream bytes;
  bytes << in.rdbuf();
  return fingerprint(bytes.str());
}

}  // namespace

RunSetup::RunSetup(ResolvedRun run, TrainingInputs inputs)
    : run_(std::move(run)),
      inputs_(std::move(inputs)),
      placement_(run_.plan.placement()),
      stage_layers_(stage_layers(run_.plan, inputs_.model)),
      shape_(run_shape(run_.config, *inputs_.data, find_schedule(run_.plan.schedule.name).synchronous)) {
  shape_.first_step = run_.start.step;
  shape_.validation_owed = run_.start.validation_owed;
  programs_ = std::make_unique<RunPrograms>(run_.plan, shape_, run_.config.comms.slots_per_channel);
}

std::string RunSetup::rank_name(Rank rank) const {
  std::vector<int> stages;
  for (const StageId stage : placement_.stages_of(rank)) stages.push_back(stage.value);
  return fmt::format("rank {}: stage{} {}", rank.value, stages.size() == 1 ? "" : "s",
                     fmt::join(stages, ", "));
}

std::string RunSetup::fingerprint() const {
  return fmt::format("binary {}, config {}, plan {}, data {}", binary_fingerprint(),
                     stagecraft::fingerprint(json::write(run_.config).dump()),
                     stagecraft::fingerprint(json::write(run_.plan).dump()), inputs_.data->fingerprint());
}

}  // namespace stagecraft
