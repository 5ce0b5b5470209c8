#include "engine/run/resolve/worker_options.h"

#include "engine/device/graphs.h"

namespace stagecraft {

WorkerOptions worker_options(const RunSetup& setup, at::Device device) {
  const RunConfig& config = setup.config();
  WorkerOptions options;
  options.optimizer = setup.inputs().optimizer;
  options.scheduler = config.scheduler;
  options.total_steps = setup.shape().steps;
  options.gradient_clipping = config.gradient_clipping;
  options.fp16 = config.fp16;
  options.on_overflow = config.overflow_policy();
  options.seed = static_cast<std::uint64_t>(config.seed);
  options.device = device;
  if (device.is_cuda() && config.cuda.graphs) options.graphs = make_device_graphs(device.index());
  options.micro_batch_size = config.micro_batch_size;
  options.batch_size = config.train_batch_size;
  options.shuffle = config.data.shuffle;
  options.poison_released_slots = config.comms.poison_released_slots;
  options.record_steps = config.log.timeline_steps;
  return options;
}

}  // namespace stagecraft
