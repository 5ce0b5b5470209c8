#include "engine/run/resolve/setup.h"

#include "base/files.h"
#include "base/fingerprint.h"
#include "base/json.h"
#include "engine/run/resolve/model_plan.h"
#include "schedules/checker/nccl_rules.h"
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

/// Whether it does is known when ranks have compared their devices.
bool may_use_nccl(const RunConfig& config) {
  return config.device != DeviceKind::cpu &&
         (config.comms.backend == Backend::nccl || config.comms.backend == Backend::automatic);
}

transport::NcclWiring wiring_for(const std::vector<const LoweredProgram*>& programs,
                                 const RunConfig& config) {
  const bool clips =
      config.gradient_clipping > 0 && !config.fp16.enabled && config.overflow_policy() == OnOverflow::stop;
  return transport::nccl_wiring(programs, nccl_rules_for(programs), config.comms.replica_sum, clips);
}

std::vector<Rank> all_ranks(int world) {
  std::vector<Rank> all;
  for (int r = 0; r < world; ++r) all.emplace_back(r);
  return all;
}

}  // namespace

RunSetup::RunSetup(ResolvedRun run, TrainingInputs inputs, std::optional<Rank> own)
    : run_(std::move(run)),
      inputs_(std::move(inputs)),
      placement_(run_.plan.placement()),
      stage_layers_(stage_layers(run_.plan, inputs_.model)),
      shape_(run_shape(run_.config, *inputs_.data, find_schedule(run_.plan.schedule.name).synchronous)) {
  shape_.first_step = run_.start.step;
  shape_.validation_owed = run_.start.validation_owed;
  RunPrograms::Look look;
  if (may_use_nccl(run_.config)) {
    look = [this](const std::vector<const LoweredProgram*>& programs) {
      try {
        nccl_ = wiring_for(programs, run_.config);
      } catch (const RefusedError&) {
        no_nccl_ = std::current_exception();  // ranks that share a GPU go another way
      }
    };
  }
  programs_ = std::make_unique<RunPrograms>(run_.plan, shape_, run_.config.comms.slots_per_channel,
                                            own ? std::vector{*own} : all_ranks(world()), look);
}

void RunSetup::prove_also(const Segment& segment) {
  const std::size_t known = programs_->count();
  programs_->add(run_.plan, segment);
  if (nccl_ && programs_->count() > known) {
    throw RefusedError(
        "over NCCL all batches have the sizes of the first one, which its communicators were made for");
  }
}

const transport::NcclWiring& RunSetup::nccl_wiring() const {
  if (no_nccl_) std::rethrow_exception(no_nccl_);
  STAGECRAFT_CHECK(nccl_.has_value(), "asked of a run that may use NCCL");
  return *nccl_;
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
