// What looking at a stage's gradients before its step costs, where ranks do not agree on the norm. One rank
// holds the whole model and makes steps as its program would; the look is timed in its place, after each
// layer of the last backward, so that caches are as they are there. Times are of the processor (the
// thread's), which other programs that take the core do not count into. The sums of squares, which ranks that
// agree on the norm have in its place, are timed beside it.
//   bench_finite_check CONFIG [STEPS [MICRO_BATCHES]]    MICRO_BATCHES: of a step; absent: the config's

#include "engine/config/config.h"
#include "engine/core/clipping.h"
#include "engine/core/finite.h"
#include "engine/core/stage.h"
#include "engine/run/resolve/training_inputs.h"
#include "models/data/dataset.h"
#include "models/tensors/counting_allocator.h"

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <exception>
#include <numeric>
#include <string>

namespace {

using namespace stagecraft;  // NOLINT: a program of its own

double processor_ms() {
  std::timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6;
}

double quantile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1) + 0.5)];
}

void show(const char* what, const std::vector<double>& times, double step) {
  const auto share = [&](double part) { return 100 * quantile(times, part) / step; };
  fmt::print("  {:<16} {:8.3f} ms   {:.3f} % of a step (quartiles {:.3f} to {:.3f})\n", what,
             quantile(times, 0.5), share(0.5), share(0.25), share(0.75));
}

int measure(const std::string& file, int steps, int micro_batches) {
  install_counting_allocator();
  at::set_num_threads(1);
  const c10::InferenceMode no_autograd;
  const RunConfig config = read_run_config(file);
  if (micro_batches == 0) micro_batches = config.micro_batches();
  const TrainingInputs run = open_training_inputs(config, file);
  const auto layers = static_cast<int>(run.model.layers.size());
  Stage stage(run.model, *run.loss, StageId{0}, 0, layers, 0, at::kCPU, [] {});
  std::vector<std::int64_t> samples(static_cast<std::size_t>(config.micro_batch_size));
  std::iota(samples.begin(), samples.end(), 0);
  const at::Tensor inputs = run.model.boundary_of(run.data->inputs(Split::train, samples));
  const at::Tensor targets = run.data->targets(Split::train, samples);

  std::vector<double> checks, squares, wholes;
  for (int step = -2; step < steps; ++step) {
    const double begin = processor_ms();
    const Version version{step + 2};
    const bool checked =
        step % 2 == 0;  // in turn, so that neither finds in the cache what the other has read
    double look = 0;
    const AfterLayer looks = [&](int layer) {
      const double before = processor_ms();
      if (last_not_finite(stage.gradients(Group{0}, layer))) throw InputError("the gradients are not finite");
      look += processor_ms() - before;
    };
    for (int i = 0; i < micro_batches; ++i) {
      (void)stage.forward_loss({inputs}, {.micro_batch = MicroBatch{0}, .version = version},
                               {.targets = targets});
      const bool last = i + 1 == micro_batches;
      (void)stage.backward(MicroBatch{0}, version, Group{0}, {}, checked && last ? looks : AfterLayer{});
    }
    if (!checked) {
      Tensors gradients;
      for (int layer = 0; layer < layers; ++layer) {
        const Tensors& some = stage.gradients(Group{0}, layer);
        gradients.insert(gradients.end(), some.begin(), some.end());
      }
      const double before = processor_ms();
      (void)norms_of(gradients);
      look = processor_ms() - before;
    }
    stage.step(Group{0}, version, /*at=*/0, *run.optimizer, {.learning_rate = 0});
    if (step < 0) continue;
    (checked ? checks : squares).push_back(look);
    wholes.push_back(processor_ms() - begin - look);
  }
  const double whole = quantile(wholes, 0.5);
  fmt::print("{}: {} steps of {} micro-batches of {}, {:.1f} ms per step\n", run.model.name, steps,
             micro_batches, config.micro_batch_size, whole);
  show("finite numbers", checks, whole);
  show("sums of squares", squares, whole);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 4) {
    fmt::print(stderr, "usage: bench_finite_check CONFIG [STEPS [MICRO_BATCHES]]\n");
    return 2;
  }
  try {
    return measure(argv[1], argc > 2 ? std::stoi(argv[2]) : 40, argc > 3 ? std::stoi(argv[3]) : 0);
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench_finite_check: {}\n", error.what());
    return 2;
  }
}
