// What splitting a backward into its input half and its weight half costs. One rank holds the whole model; a
// pair is a micro-batch whose backward is whole and the same one whose backward is split, in either order, so
// that what slows the machine for longer than a pair slows both. Times are of the processor (the thread's),
// which other programs that take the core do not count into.
//   bench_split_backward CONFIG [PAIRS [FIRST]]    FIRST: the stage's first layer; its last is the model's

#include "engine/config/config.h"
#include "engine/core/stage.h"
#include "engine/run/resolve/training_inputs.h"
#include "models/data/dataset.h"
#include "models/tensors/counting_allocator.h"

#include <ATen/Parallel.h>
#include <ATen/ops/randn.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <exception>
#include <numeric>

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

int measure(const std::string& file, int pairs, int first_layer) {
  install_counting_allocator();
  at::set_num_threads(1);
  const c10::InferenceMode no_autograd;
  const RunConfig config = read_run_config(file);
  const TrainingInputs run = open_training_inputs(config, file);
  Stage stage(run.model, *run.loss, StageId{0}, first_layer, static_cast<int>(run.model.layers.size()), 0,
              at::kCPU, [] {});
  std::vector<std::int64_t> samples(static_cast<std::size_t>(config.micro_batch_size));
  std::iota(samples.begin(), samples.end(), 0);
  at::Tensor inputs = run.model.boundary_of(run.data->inputs(Split::train, samples));
  if (first_layer > 0) {
    const BoundarySpec spec =
        boundaries(run.model, config.micro_batch_size).at(static_cast<std::size_t>(first_layer));
    inputs = at::randn(spec.shape, spec.dtype);
  }
  const at::Tensor targets = run.data->targets(Split::train, samples);

  const MicroBatch micro_batch{0};
  const auto backward = [&](bool split) {
    (void)stage.forward_loss({inputs}, {.micro_batch = micro_batch, .version = Version{0}},
                             {.targets = targets});
    const double begin = processor_ms();
    if (split) {
      (void)stage.backward_input(micro_batch, Version{0}, {});
      stage.backward_weight(micro_batch, Group{0});
    } else {
      (void)stage.backward(micro_batch, Version{0}, Group{0}, {});
    }
    return processor_ms() - begin;
  };
  for (int i = 0; i < 6; ++i) (void)backward(i % 2 == 0);
  std::vector<double> split, whole, ratios;
  for (int pair = 0; pair < pairs; ++pair) {
    const bool split_first = pair % 2 == 0;
    const double first = backward(split_first), second = backward(!split_first);
    split.push_back(split_first ? first : second);
    whole.push_back(split_first ? second : first);
    ratios.push_back(split.back() / whole.back());
  }
  fmt::print(
      "{}, layers from {}: {} pairs, split {:.2f} ms, whole {:.2f} ms; ratio {:.4f} (quartiles {:.4f} to "
      "{:.4f}, {:.3f} to "
      "{:.3f})\n",
      run.model.name, first_layer, pairs, quantile(split, 0.5), quantile(whole, 0.5), quantile(ratios, 0.5),
      quantile(ratios, 0.25), quantile(ratios, 0.75), quantile(ratios, 0), quantile(ratios, 1));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 4) {
    fmt::print(stderr, "usage: bench_split_backward CONFIG [PAIRS [FIRST]]\n");
    return 2;
  }
  try {
    return measure(argv[1], argc > 2 ? std::stoi(argv[2]) : 200, argc > 3 ? std::stoi(argv[3]) : 0);
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench_split_backward: {}\n", error.what());
    return 2;
  }
}
