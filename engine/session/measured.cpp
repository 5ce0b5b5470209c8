#include "engine/session/measured.h"

#include "base/error.h"
#include "engine/run/resolve/devices.h"
#include "engine/run/resolve/plan_request.h"
#include "engine/run/resolve/quick_profile.h"
#include "models/tensors/counting_allocator.h"

#include <memory>
#include <optional>
#include <utility>

namespace stagecraft {

TrainingInputs given_inputs(const RunConfig& config, const GivenTensors& batch, GivenBatches*& held) {
  const auto* const given = config.data.source.get_if<GivenDataConfig>();
  if (given == nullptr) throw InputError({"pipeline", "/data/type"}, "expected \"given\"");
  auto batches =
      std::make_unique<GivenBatches>(*given, config.train_batch_size, GivenBatches::Sizes::one_batch);
  held = batches.get();
  if (!batch.empty()) (void)held->give(batch);
  return make_training_inputs(config, "pipeline", std::move(batches));
}

Profile measured(const Json& json, const GivenTensors& batch) {
  install_counting_allocator();
  const RunConfig config = run_config_from(json, "pipeline");
  check_device(config, "pipeline");
  GivenBatches* held = nullptr;
  const TrainingInputs inputs = given_inputs(config, batch, held);
  return quick_profile(config, "pipeline", inputs, rank_threads(config, std::nullopt),
                       prepare_device(config, "pipeline", /*machine_rank=*/0));
}

}  // namespace stagecraft
