// run.json, alone or as {"config": ..., "set": ["a.b=v", ...]}: what is read is written and read back the
// same, every schedule takes it or says why not, and its data and its arithmetic are those of a run, or
// refused.

#include "base/error.h"
#include "base/json.h"
#include "engine/config/config.h"
#include "models/data/dataset.h"
#include "models/data/synthetic.h"
#include "schedules/generators/registry.h"
#include "schedules/program/segments.h"
#include "test/fuzz/json_changes.h"
#include "test/fuzz/judge_files.h"
#include "test/fuzz/scratch_folder.h"
#include "test/fuzz/target.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace stagecraft::fuzz {
namespace {

constexpr std::int64_t kMostElements = 10'000;  // more are only slow

RunConfig read(const std::string& text) {
  static const ScratchFolder folder;
  std::string config = text;
  std::vector<std::string> overrides;
  const Json json = json::parse_text(text, "x");
  if (json.is_object() && json.contains("config")) {
    config = json["config"].dump();
    json::read_value(json.value("set", Json::array()), {"x", "/set"}, overrides, {});
  }
  return read_run_config(folder.write("run.json", config), overrides);
}

void require_samples(const Dataset& data, const RunConfig& config, Split split) {
  const std::int64_t size = data.size(split);
  if (size == 0) return;
  std::int64_t elements = data.sample().classes;
  for (const std::int64_t extent : data.sample().shape) elements *= std::min(extent, kMostElements + 1);
  const Shuffle shuffle(size, static_cast<std::uint64_t>(config.seed), 0, config.data.shuffle);
  const std::vector<std::int64_t> indices{shuffle(0), shuffle(size - 1)};
  for (const std::int64_t index : indices) require(index >= 0 && index < size, "a shuffled position is one");
  if (elements > kMostElements) return;
  require(data.inputs(split, indices).size(0) == 2, "a batch holds what it was asked for");
  require(data.targets(split, indices).size(0) == 2, "targets go with the batch");
}

/// The run's segments, as far as its data is known without files.
void judge_run(const RunConfig& config) {
  if (config.data.source.get_if<SyntheticDataConfig>() == nullptr) return;
  const std::unique_ptr<Dataset> data = open_dataset(config.data, {"x", "/data"});
  for (const Split split : {Split::train, Split::validation}) require_samples(*data, config, split);
  for (const bool synchronous : {true, false}) {
    RunShape shape;
    shape.samples = data->size(Split::train);
    shape.validation_samples = data->size(Split::validation);
    shape.batch = config.train_batch_size;
    shape.micro_batch = config.micro_batch_size;
    shape.validate_every = config.validation.every_steps;
    shape.checkpoint_every = config.checkpoint.every_steps;
    shape.synchronous = synchronous;
    shape.drop_last = config.data.drop_last;
    shape.steps = config.train_steps ? *config.train_steps : steps_of_epochs(shape, *config.epochs);
    if (config.micro_batches() > 1000) return;  // only slow
    require(!distinct_shapes(shape).empty(), "a run has segments");
    (void)training_identity(config, shape.steps, synchronous);
  }
}

}  // namespace
}  // namespace stagecraft::fuzz

FUZZ_MUTATOR(run_config) { return stagecraft::fuzz::mutate_json(data, size, max_size, seed); }

FUZZ_TARGET(run_config) {
  using namespace stagecraft;
  RunConfig config;
  try {
    config = fuzz::read(std::string(data, data + size));
  } catch (const InputError&) {
    return 0;
  }
  fuzz::accepted();
  fuzz::require_reads_back(config);
  for (const Schedule& schedule : schedules()) {
    try {
      check_schedule(config, schedule.name, "x");
    } catch (const InputError&) {  // says why not
    }
  }
  try {
    fuzz::judge_run(config);
  } catch (const InputError&) {  // no run
  }
  return 0;
}
