// What a replayed operator costs the host beyond the same call written in C++: a chain of additions of small
// tensors as a Program, and as calls of at::add in a loop, in turns. Times are of the processor (the thread's).
//   bench_replay_overhead [PAIRS]

#include "models/captured/replay/replay.h"

#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/add.h>
#include <ATen/ops/ones.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <vector>

namespace {

using namespace stagecraft;  // NOLINT: a program of its own

constexpr int kSteps = 1000;
constexpr std::int64_t kElements = 16;

double processor_us() {
  std::timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) * 1e-3;
}

/// x + y + y + ...: values 0 and 1 are the inputs, each step makes the next.
captured::Steps additions() {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::add", "Tensor");
  captured::Steps steps;
  for (captured::ValueId i = 0; i < kSteps; ++i) {
    captured::Argument x, y, alpha;
    x.kind = y.kind = captured::Argument::Kind::value;
    x.values = {i == 0 ? 0 : i + 1};
    y.values = {1};
    alpha.constant = 1;
    captured::Step step;
    step.name = "aten::add.Tensor";
    step.op = op;
    step.arguments = {x, y, alpha};
    step.results = {i + 2};
    steps.push_back(step);
  }
  return steps;
}

}  // namespace

int main(int argc, char** argv) {
  const int pairs = argc > 1 ? std::atoi(argv[1]) : 2000;
  at::set_num_threads(1);
  const c10::InferenceMode inference;
  const auto steps = additions();
  captured::Value value;
  value.type.dtype = at::kFloat;
  value.type.sizes = {{.times = 0, .plus = kElements}};
  const std::vector<captured::Value> values(kSteps + 2, value);
  const captured::Program program({"the bench", steps, values, {0, 1}, {kSteps + 1}}, 1, at::kCPU,
                                  MatrixProducts::blas);
  const auto x = at::ones({kElements}), y = at::ones({kElements});
  std::vector<double> over;
  std::vector<double> replayed, called;
  for (int pair = 0; pair < pairs + 10; ++pair) {
    const double begin = processor_us();
    const auto made = program.run({x, y}, {});
    const double between = processor_us();
    auto sum = at::add(x, y);
    for (int i = 1; i < kSteps; ++i) sum = at::add(sum, y);
    const double end = processor_us();
    if (!made[0].equal(sum)) return 1;
    if (pair < 10) continue;
    replayed.push_back((between - begin) / kSteps);
    called.push_back((end - between) / kSteps);
    over.push_back(replayed.back() - called.back());
  }
  const auto quantile = [](std::vector<double> of, double q) {
    std::ranges::sort(of);
    return of[static_cast<std::size_t>(q * static_cast<double>(of.size() - 1))];
  };
  fmt::print(
      "us per operator, medians of {} pairs: replayed {:.3f}, called {:.3f}, beyond the call {:.3f} "
      "(quartiles {:.3f} "
      "and {:.3f})\n",
      pairs, quantile(replayed, 0.5), quantile(called, 0.5), quantile(over, 0.5), quantile(over, 0.25),
      quantile(over, 0.75));
  return 0;
}
