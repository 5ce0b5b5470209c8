// What a steady step costs a rank's host: a small MLP (SGD) and a small GPT (AdamW), four micro-batches per step, on the
// fake device: one rank, and two ranks under 1f1b over two transports; without and with clipping and recordings.
//   host_us   processor time of the rank's thread in Worker::run, without the device's share (operators, recordings,
//             calls of streams and NCCL) and without waits for the other host. LibTorch's dispatch, which a GPU's host
//             has too, and the fake's allocator are in it. Median over steps.
//   ops       operators and copies of LibTorch's; launches: with recordings, transfers, and copies for messages
//   calls     of streams, events and NCCL, without those while the host waits for another
//   waits     of the host for the device; wide: what may make CUDA wait for the whole device (fake_accelerator.h)
//   allocs    the host's calls of operator new, median over steps; the others are means
//   bench_host_step [STEPS [RANKS]]     RANKS: 1, "2 staged" or "2 nccl"; otherwise all

#include "engine/transport/nccl/nccl_transport.h"
#include "engine/transport/staged/staged_transport.h"
#include "test/bench/host_step/metered.h"
#include "test/engine/pipeline_case.h"
#include "test/support/fake_accelerator.h"
#include "test/support/fake_graphs.h"
#include "test/support/ranks.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace stagecraft;        // NOLINT: a program of its own
using namespace stagecraft::test;  // NOLINT

constexpr std::int64_t kWarmUp = 20;  // recordings are made, memory is in its pools

struct Case {
  ModelKind model;
  int ranks;
  const char* transport;  ///< "staged" or "nccl"
  bool clips, records;
};

struct Step {
  double us;
  std::int64_t operators, launches, calls, host_waits, device_wide_waits;
  std::size_t allocations;
};

Setting setting_of(const Case& c, std::int64_t steps) {
  Setting setting({.stages = c.ranks,
                   .model = c.model,
                   .optimizer = c.model == ModelKind::gpt ? CaseOptimizer::adamw : CaseOptimizer::sgd,
                   .clipping = c.clips ? 0.05 : 0,
                   .device = fake_accelerator()});
  setting.shape.steps = kWarmUp + steps;
  setting.shape.validation_samples = setting.shape.validate_every = 0;
  setting.options.total_steps = setting.shape.steps;
  setting.options.poison_released_slots = false;
  setting.options.record_steps = 0;
  if (c.records) setting.options.graphs = std::make_shared<MeteredGraphs>(fake_graphs());
  return setting;
}

/// This rank's steps, behind those that warm up.
std::vector<Step> steps_of(const Setting& setting, Transport& transport) {
  std::optional<Meter::As> operator_under_way;
  set_around_operators([&](bool begins) {
    if (begins) {
      operator_under_way.emplace(Meter::Who::device);
    } else {
      operator_under_way.reset();
    }
  });
  Worker worker(setting.model, *setting.loss, *setting.data, setting.stage_layers, setting.placement,
                transport, setting.options);
  std::vector<Step> steps;
  SegmentWalk walk(setting.shape);
  for (Segment segment; walk.next(segment);) {
    const RankProgramPtr program = setting.programs->of(setting, segment, transport.rank());
    const std::int64_t operators = device_operators(), waits = host_waits();
    const std::size_t wide = device_wide_waits().size();
    Meter::here().begin();
    (void)worker.run(program, segment, [](const StepReport&) {});
    const Meter::Reading host = Meter::here().end();
    if (segment.first_step < kWarmUp) continue;
    const std::int64_t made = device_operators() - operators;
    steps.push_back({host.us, made, made + host.launches, host.calls, host_waits() - waits,
                     static_cast<std::int64_t>(device_wide_waits().size() - wide), host.allocations});
  }
  worker.settle();
  set_around_operators(nullptr);
  return steps;
}

std::vector<std::vector<Step>> run(const Case& c, std::int64_t steps) {
  const Setting setting = setting_of(c, steps);
  const bool over_nccl = std::string(c.transport) == "nccl";
  (void)programs_of(setting);  // lowered and proved, in no step
  const transport::NcclWiring wiring = over_nccl ? nccl_needs(setting) : transport::NcclWiring{};
  const auto fabric = std::make_shared<FakeFabric>();
  std::vector<std::vector<Step>> all(static_cast<std::size_t>(c.ranks));
  run_ranks(c.ranks, {.timeout = Seconds{60}}, [&](Transport& local) {
    const auto fake =
        std::make_shared<FakeDevice>(fabric, static_cast<std::uint64_t>(local.rank().value) + 1);
    const auto device = std::make_shared<MeteredDevice>(fake);
    auto hosts = std::make_unique<MeteredHosts>(local);
    std::unique_ptr<Transport> transport;
    if (over_nccl) {
      transport = std::make_unique<transport::NcclTransport>(std::move(hosts), device, device, wiring);
    } else {
      transport = std::make_unique<transport::StagedTransport>(std::move(hosts), device);
    }
    // The device waits in the middle of the host's work, and a GPU's host would go on.
    fake->set_meanwhile([&transport] {
      const Meter::As host(Meter::Who::host);
      const Meter::Polling polling(/*works=*/false);
      transport->progress();
    });
    MeteredTransport metered(*transport);
    try {
      all[local.rank().index()] = steps_of(setting, metered);
      transport->barrier();
    } catch (const std::exception& error) {
      transport->fail(error.what());
      throw;
    }
    fake->set_meanwhile(nullptr);
  });
  return all;
}

template <class Number>
double mean(const std::vector<Step>& steps, Number Step::*of) {
  double sum = 0;
  for (const Step& step : steps) sum += static_cast<double>(step.*of);
  return sum / static_cast<double>(steps.size());
}

template <class Number>
double median(const std::vector<Step>& steps, Number Step::*of) {
  std::vector<double> values;
  for (const Step& step : steps) values.push_back(static_cast<double>(step.*of));
  std::ranges::sort(values);
  return values[values.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  const std::int64_t steps = argc > 1 ? std::atol(argv[1]) : 60;
  const std::string wanted = argc > 2 ? argv[2] : "";
  at::set_num_threads(1);
  Meter::calibrate();
  fmt::print("{:6} {:7} {:8} {:9} {:9} {:>9} {:>7} {:>9} {:>7} {:>6} {:>6} {:>7}\n", "model", "ranks",
             "clipping", "recorded", "rank", "host_us", "ops", "launches", "calls", "waits", "wide",
             "allocs");
  for (const ModelKind model : {ModelKind::mlp, ModelKind::gpt}) {
    for (const auto& [ranks, transport] : {std::pair{1, "staged"}, {2, "staged"}, {2, "nccl"}}) {
      const std::string name = ranks == 1 ? "1" : fmt::format("2 {}", transport);
      if (!wanted.empty() && wanted != name) continue;
      for (const bool clips : {false, true}) {
        for (const bool records : {false, true}) {
          const auto all = run({model, ranks, transport, clips, records}, steps);
          for (std::size_t rank = 0; rank < all.size(); ++rank) {
            const std::vector<Step>& its = all[rank];
            fmt::print("{:6} {:7} {:8} {:9} {:9} {:9.0f} {:7.1f} {:9.1f} {:7.1f} {:6.2f} {:6.2f} {:7.0f}\n",
                       model == ModelKind::gpt ? "gpt" : "mlp", name, clips ? "on" : "off",
                       records ? "yes" : "no", rank, median(its, &Step::us), mean(its, &Step::operators),
                       mean(its, &Step::launches), mean(its, &Step::calls), mean(its, &Step::host_waits),
                       mean(its, &Step::device_wide_waits), median(its, &Step::allocations));
          }
        }
      }
    }
  }
  return 0;
}
