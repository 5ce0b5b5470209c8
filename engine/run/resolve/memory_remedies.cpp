#include "engine/run/resolve/memory_remedies.h"

#include "base/table.h"
#include "schedules/generators/registry.h"
#include "schedules/generators/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <optional>

namespace stagecraft {
namespace {

/// Activations of a micro-batch of `part` of the samples: as large in proportion, which is near the truth.
CostTable with_smaller_batches(CostTable costs, double part) {
  const auto scale = [part](Bytes& bytes) {
    bytes = Bytes{static_cast<std::int64_t>(static_cast<double>(bytes.value) * part)};
  };
  for (StageCosts& stage : costs.stages) {
    for (Bytes* bytes : {&stage.input, &stage.read, &stage.output, &stage.targets, &stage.kept_for_input,
                         &stage.kept_for_weight, &stage.forward_peak, &stage.backward_peak}) {
      scale(*bytes);
    }
    for (std::optional<Bytes>* bytes :
         {&stage.unkept_forward_peak, &stage.backward_input_peak, &stage.backward_weight_peak}) {
      if (*bytes) scale(**bytes);
    }
  }
  return costs;
}

class Remedies {
 public:
  Remedies(const RunSetup& setup, const std::function<bool(const std::vector<Bytes>&)>& fits)
      : setup_(setup), fits_(fits) {}

  std::vector<std::string> all() {
    recompute();
    other_schedule();
    smaller_batches();
    return std::move(found_);
  }

 private:
  /// The setup's plan, to be changed. A carried order belongs to what it was searched for.
  [[nodiscard]] Plan plan() const {
    Plan plan = setup_.plan();
    plan.capacity.reset();
    plan.program.reset();
    if (find_schedule(plan.schedule.name).searched) plan.schedule.name = "1f1b";
    return plan;
  }

  bool take(const std::string& what, const Plan& plan, const RunShape& shape) {
    try {
      const RunPrograms programs(plan, shape, setup_.config().comms.slots_per_channel, /*ranks=*/{});
      if (!fits_(programs.memory())) return false;
      found_.push_back(
          fmt::format("{}: {} on the rank that needs most", what,
                      format_bytes(*std::max_element(programs.memory().begin(), programs.memory().end()))));
      return true;
    } catch (const RefusedError&) {
      return false;
    } catch (const InputError&) {  // not with this schedule
      return false;
    }
  }

  void recompute() {
    Plan other = plan();
    if (std::all_of(other.stages.begin(), other.stages.end(),
                    [](const StagePlan& stage) { return stage.recompute == Recompute::all; })) {
      return;
    }
    for (StagePlan& stage : other.stages) stage.recompute = Recompute::all;
    take("activation_checkpointing.recompute \"all\"", other, setup_.shape());
  }

  void other_schedule() {
    Plan other = plan();
    if (other.schedule.name == "1f1b" || !setup_.synchronous() ||
        find_schedule(other.schedule.name).placement != PlacementKind::straight) {
      return;
    }
    other.schedule.name = "1f1b";
    other.schedule.warmup_extra = 0;
    take("pipeline.schedule \"1f1b\"", other, setup_.shape());
  }

  void smaller_batches() {
    const std::int64_t now = setup_.config().micro_batch_size;
    for (std::int64_t size = now / 2; size >= 1; size /= 2) {
      Plan other = plan();
      other.costs = with_smaller_batches(*other.costs, static_cast<double>(size) / static_cast<double>(now));
      RunShape shape = setup_.shape();
      shape.micro_batch = size;
      if (take(fmt::format("train_micro_batch_size_per_gpu {} (in proportion)", size), other, shape)) return;
    }
  }

  const RunSetup& setup_;
  const std::function<bool(const std::vector<Bytes>&)>& fits_;
  std::vector<std::string> found_;
};

}  // namespace

std::vector<std::string> memory_remedies(const RunSetup& setup,
                                         const std::function<bool(const std::vector<Bytes>&)>& fits) {
  if (!setup.plan().costs) return {};
  return Remedies(setup, fits).all();
}

}  // namespace stagecraft
