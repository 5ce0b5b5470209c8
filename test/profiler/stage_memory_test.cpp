// The proof that the memory accounting is right: what stage_costs predicts from a profile is, to the byte,
// what the allocator is asked for when the engine runs that stage: the CPU's, and a device's that is not the
// CPU.

#include "engine/core/stage.h"
#include "models/tensors/counting_allocator.h"
#include "profiler/layer_profiler.h"
#include "profiler/memory_meter.h"
#include "test/profiler/models.h"
#include "test/support/catch.h"
#include "test/support/fake_accelerator.h"

#include <c10/core/InferenceMode.h>

#include <algorithm>

namespace stagecraft {
namespace {

constexpr std::int64_t kSize = 3;

/// What was live and what was most, above what was live before.
struct Measured {
  Bytes after_forward;  ///< output included
  Bytes kept;
  Bytes forward_peak;
  Bytes backward_peak;  ///< split: the input half's
  Bytes kept_for_weight;
  Bytes weight_half_peak;  ///< above that
};

/// What a stage finds in a slot: values that share the memory of one packed tensor.
Bundle received(const BoundarySpec& spec, at::Device device) {
  Bundle values;
  for (const ValueSpec& value : spec.values) {
    values.push_back(
        (value.has_gradient() ? at::randn(value.shape, value.dtype) : at::ones(value.shape, value.dtype))
            .to(device));
  }
  return unpacked(spec, packed(values));
}

/// None of the model's first stage.
at::Tensor sent(const Bundle& gradients) { return gradients.empty() ? at::Tensor() : packed(gradients); }

/// Runs the stage of layers [first, last) (the loss behind the last one) twice; the second time is measured.
Measured run_stage(const test::ProfiledModel& subject, int first, int last, bool with_loss, bool split,
                   at::Device device) {
  const auto size = static_cast<std::size_t>(first);
  const std::vector<BoundarySpec> shapes = boundaries(subject.model, kSize);
  ChainInput data = subject.data(kSize);
  data.inputs = data.inputs.to(device);
  if (data.targets.defined()) data.targets = data.targets.to(device);
  for (auto& [name, field] : data.fields) field = field.to(device);
  const Bundle input = first == 0 ? Bundle{data.inputs} : received(shapes[size], device);
  const Bundle gradient =
      with_loss ? Bundle() : received(shapes[static_cast<std::size_t>(last)].gradients(), device);
  Stage stage(subject.model, *subject.loss, StageId{0}, first, last, 1, device, [] {});
  Action forward{Op::forward, StageId{0}, MicroBatch{0}, Version{0}, Group{0}, {}, {}};
  Action backward = forward;
  backward.op = Op::backward;
  const std::vector<Action> list{forward, backward};

  MemoryMeter meter(device);
  Measured measured;
  for (int round = 0; round < 2; ++round) {
    stage.begin(version_reads(list, StageId{0}));
    const Bytes before = meter.live();
    meter.reset_peak();
    at::Tensor output;
    ForwardTask task;
    task.micro_batch = MicroBatch{0};
    task.version = Version{0};
    task.fields = data.fields;
    if (with_loss) {
      (void)stage.forward_loss(input, task, {data.targets, 1});
    } else {
      output = packed(stage.forward(input, task));
    }
    measured.forward_peak = meter.peak() - before;
    measured.after_forward = meter.live() - before;
    output.reset();
    const Bytes kept = meter.live();
    measured.kept = kept - before;
    meter.reset_peak();
    if (stage.frozen()) continue;  // nothing before its end has weights: it has no backward
    if (!split) {
      (void)sent(stage.backward(MicroBatch{0}, Version{0}, Group{0}, gradient));
      measured.backward_peak = meter.peak() - kept;
      continue;
    }
    (void)sent(stage.backward_input(MicroBatch{0}, Version{0}, gradient));
    measured.backward_peak = meter.peak() - kept;
    const Bytes between = meter.live();
    measured.kept_for_weight = between - before;
    meter.reset_peak();
    stage.backward_weight(MicroBatch{0}, Group{0});
    measured.weight_half_peak = meter.peak() - between;
  }
  return measured;
}

}  // namespace

TEST_CASE("bytes predicted from a profile are those that a stage takes, wherever the model is cut",
          "[profiled_memory]") {
  install_counting_allocator();
  const c10::InferenceMode no_autograd;
  at::set_num_threads(1);
  const at::Device device = GENERATE(at::Device(at::kCPU), test::fake_accelerator());
  for (const double dropout : {0.0, 0.25}) {
    std::vector<test::ProfiledModel> subjects = test::subjects(dropout);
    if (dropout > 0) subjects.push_back(test::captured_bundles());
    for (const test::ProfiledModel& subject : subjects) {
      ProfileRequest request;
      request.micro_batch_sizes = {kSize};
      request.repeats = 1;
      request.warmup = Seconds{0};
      request.device = device;
      request.data = [&](std::int64_t size, int) { return subject.data(size); };
      const Profile profile = profile_model(subject.model, *subject.loss, request);
      const Measurement& measurement = profile.at(kSize);
      const int layers = static_cast<int>(subject.model.layers.size());
      for (int first = 0; first < layers; ++first) {
        for (int last = first + 1; last <= layers; ++last) {
          const bool with_loss = last == layers;
          const StageCosts costs = stage_costs(measurement, first, with_loss ? last + 1 : last, 0);
          const Measured measured = run_stage(subject, first, last, with_loss, /*split=*/false, device);
          const Measured halves = run_stage(subject, first, last, with_loss, /*split=*/true, device);
          INFO(device << ": " << subject.model.name << ", dropout " << dropout << ", layers " << first
                      << " to " << last - 1 << " ("
                      << subject.model.layers[static_cast<std::size_t>(first)]->name() << " .. "
                      << subject.model.layers[static_cast<std::size_t>(last - 1)]->name() << ")");
          CHECK(measured.after_forward.value == (costs.kept_for_input + costs.output).value);
          CHECK(measured.kept.value ==
                (costs.kept_for_input + (costs.output_kept ? costs.output : Bytes{})).value);
          CHECK(measured.forward_peak.value ==
                std::max(costs.forward_peak, costs.kept_for_input + costs.output).value);
          CHECK(halves.kept_for_weight.value == costs.kept_for_weight.value);
          const auto predicts = [&](Bytes peak, Bytes predicted) {
            // A replayed graph frees what it reads for the last time, unless others hold it: they are taken to.
            CHECK(peak.value <= predicted.value);
            if (subject.dataset == nullptr) CHECK(peak.value == predicted.value);
          };
          predicts(measured.backward_peak, costs.backward_peak);
          predicts(halves.backward_peak, costs.input_half_peak());
          predicts(halves.weight_half_peak, costs.weight_half_peak());
        }
      }
    }
  }
}

}  // namespace stagecraft
