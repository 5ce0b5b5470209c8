// Plans of `--schedule auto` for random requests, written to a folder, to compare two builds byte by byte
// (scripts/bench/unchanged.sh). Searches are bounded by work that is counted, so that a build gives the same
// files every time.
//
//   bench_auto_plans FOLDER [PLANS]       default: 200
//
// FOLDER gets NNN.json per plan, NNN.txt with the reason where nothing fits, and plans.txt with a line per
// request: what was asked for, where the order came from, its step, the bound and the peaks of memory.
// Requests are drawn until so many plans are made; those for which nothing fits come on top.

#include "base/files.h"
#include "base/json.h"
#include "partitioner/search/planner.h"
#include "test/schedules/random_costs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>

using namespace stagecraft;

namespace {

struct Case {
  Profile profile;
  Cluster cluster;
  PlanRequest request;
  std::string asked;
};

/// Sizes in the proportions of a transformer's blocks, times as uneven as a convolutional network's.
Profile random_profile(test::RandomCosts& random, int layers) {
  Profile profile;
  profile.model = "random";
  profile.optimizer = "adamw";
  profile.optimizer_bytes_per_parameter_byte = 2;
  Measurement& measured = profile.measurements.emplace_back();
  const std::int64_t width = random.between(1, 8) * 1'000'000LL;
  const double uneven = random.between(0.0, 0.8);
  measured.input = Bytes{width / 4};
  measured.targets = Bytes{4096};
  for (int i = 0; i < layers; ++i) {
    LayerProfile& layer = measured.layers.emplace_back();
    layer.name = fmt::format("layer{}", i);
    layer.forward.median = Seconds{random.between(1 - uneven, 1 + uneven) * 2e-3};
    layer.backward_input.median = layer.forward.median * random.between(0.7, 1.3);
    layer.backward_weight.median = layer.forward.median * random.between(0.5, 1.2);
    layer.step.median = Seconds{random.between(0.0, 2e-4)};
    layer.parameters = Bytes{random.between(0, 12) * 1'000'000LL};
    layer.output = Bytes{i + 1 == layers ? 0 : width};
    layer.kept_for_input = Bytes{width * random.between(1, 8)};
    layer.kept_for_weight = Bytes{layer.kept_for_input.value * random.between(20, 90) / 100};
    layer.keeps_input = random.coin();
    layer.keeps_output = random.coin() && i + 1 < layers;
    layer.forward_transient = Bytes{width * random.between(0, 2)};
    layer.backward_transient = Bytes{width * random.between(0, 3)};
    if (random.coin()) layer.weight_half_keeps_gradient = true;
  }
  return profile;
}

Cluster random_cluster(test::RandomCosts& random) {
  const Link near{Seconds{random.between(0.0, 5e-5)}, random.between(1e9, 2e10)};
  Cluster cluster;
  const int machines = random.between(1, 3) == 1 ? 2 : 1;
  const int each = machines == 2 ? random.between(1, 4) : random.between(2, 8);
  cluster.levels.push_back({each, near});
  if (machines == 2) {
    const Link far{Seconds{random.between(1e-5, 2e-4)}, random.between(1e9, 8e9)};
    cluster.levels.push_back({machines, far, random.coin() ? SharedBy::child : SharedBy::pair});
  }
  if (random.between(0, 3) == 0) {
    for (int r = 0; r < cluster.devices(); ++r) cluster.speed.push_back(random.between(0.6, 1.2));
  }
  return cluster;
}

/// What 1f1b needs on its fullest rank without a cap, with the same stages.
std::optional<Bytes> peak_of_1f1b(const Case& given) {
  PlanRequest request = given.request;
  request.schedule.name = "1f1b";
  request.virtual_stages.reset();
  request.recompute = Recompute::none;
  try {
    const Plan plan = make_plan(given.profile, given.cluster, request).best.plan;
    return *std::max_element(plan.predicted->memory.begin(), plan.predicted->memory.end());
  } catch (const InputError&) {  // stages that 1f1b does not take
    return std::nullopt;
  }
}

Case random_case(int number) {
  test::RandomCosts random(static_cast<std::uint64_t>(number) + 1);
  Case made;
  made.cluster = random_cluster(random);
  const int devices = made.cluster.devices();
  const int layers = random.between(std::max(4, devices), std::max(6, 2 * devices + 2));
  made.profile = random_profile(random, layers);
  PlanRequest& request = made.request;
  request.schedule.name = "auto";
  request.schedule.agree_norm = random.between(0, 4) == 0;
  request.micro_batches = random.between(2, 3 * devices);
  request.search.work = random.coin() ? 300'000 : 1'000'000;
  request.search.cut_work = 1'000'000'000;
  if (random.coin()) request.stages = random.between(std::max(1, devices / 2), devices);
  if (random.between(0, 4) == 0) request.replicate = true;
  if (random.between(0, 3) == 0) request.virtual_stages = random.between(1, 2);
  switch (random.between(0, 3)) {
    case 0:
      request.recompute = std::nullopt;
      break;
    case 1:
      request.recompute = Recompute::all;
      break;
    case 2:
      request.recompute = random.coin() ? Recompute::all_but_last : Recompute::none;
      break;
    default:
      break;
  }
  const double cap = random.between(0, 2) == 0 ? 0 : random.between(0.5, 1.2);
  if (cap > 0) {
    if (const auto peak = peak_of_1f1b(made)) {
      made.cluster.memory = Bytes{static_cast<std::int64_t>(static_cast<double>(peak->value) * cap)};
    }
  }
  made.asked = fmt::format(
      "{} layers, {} devices, {} micro-batches, stages {}, chunks {}, recompute {}{}, cap {:.2f}", layers,
      devices, request.micro_batches, request.stages.value_or(0), request.virtual_stages.value_or(0),
      request.recompute ? enum_name(*request.recompute) : "auto", request.replicate ? ", replicas" : "", cap);
  return made;
}

std::string found_text(const PlanResult& result) {
  const PlanCandidate& best = result.best;
  std::string text = fmt::format("{}, {}, step {:.17g}, ideal {:.17g}", best.placement, best.bound_by,
                                 best.plan.predicted->step.value, best.plan.predicted->step_ideal.value);
  if (best.search) {
    text += fmt::format(", from {}, {} orders, gap {:.17g}{}", best.search->from, best.search->orders,
                        best.search->gap, best.search->optimal ? ", optimal" : "");
  }
  if (result.proof)
    text += fmt::format(", bound {:.17g}, {} simulated", result.proof->bound.value, result.proof->simulated);
  text += fmt::format(", {} others, {} do not fit, peaks", result.others.size(), result.infeasible.size());
  for (const Bytes peak : best.plan.predicted->memory) text += fmt::format(" {}", peak.value);
  return text;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "usage: bench_auto_plans FOLDER [PLANS]\n");
    return 2;
  }
  const std::string folder = argv[1];
  const int plans = argc > 2 ? std::atoi(argv[2]) : 200;
  std::filesystem::create_directories(folder);
  std::string lines;
  for (int number = 0, made = 0; made < plans; ++number) {
    const Case given = random_case(number);
    const std::string name = fmt::format("{}/{:03}", folder, number);
    std::string found;
    try {
      const PlanResult result = make_plan(given.profile, given.cluster, given.request);
      write_json_file(name + ".json", json::write(result.best.plan));
      found = found_text(result);
      ++made;
    } catch (const RefusedError& error) {
      write_file_atomically(name + ".txt", std::string(error.what()) + "\n");
      found = "nothing fits";
    } catch (const InputError&) {  // two stages on each rank, but one stage in all
      continue;
    }
    lines += fmt::format("{:03}: {}: {}\n", number, given.asked, found);
  }
  write_file_atomically(folder + "/plans.txt", lines);
}
