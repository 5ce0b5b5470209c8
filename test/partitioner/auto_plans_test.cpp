// `auto` beside every schedule by name, each planned by itself over all numbers of stages and placements:
// scripts/bench/auto_beside_named.py asks the same of larger models with the usual budget.

#include "partitioner/search/planner.h"
#include "schedules/generators/registry.h"
#include "test/partitioner/random_profile.h"
#include "test/support/catch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace stagecraft {
namespace {

/// Equal layers between an embedding and a head, or uneven ones.
Profile chain_of(int layers, bool equal, std::mt19937_64& random) {
  std::lognormal_distribution<double> uneven(0, 0.6);
  std::uniform_real_distribution<double> share(0.5, 1.2);
  Profile profile;
  profile.optimizer_bytes_per_parameter_byte = 2;
  Measurement& measured = profile.measurements.emplace_back();
  measured.input = Bytes{4'000'000};
  measured.targets = Bytes{4};
  for (int i = 0; i < layers; ++i) {
    const bool head = i + 1 == layers;
    const double time = equal ? (i == 0 ? 0.2 : head ? 2.5 : 1.0) : uneven(random);
    LayerProfile& layer = measured.layers.emplace_back();
    layer.name = fmt::format("layer{}", i);
    layer.forward.median = Seconds{2e-3 * time};
    layer.backward_input.median = layer.forward.median * share(random);
    layer.backward_weight.median = layer.forward.median * share(random);
    layer.step.median = Seconds{5e-5};
    layer.parameters = Bytes{20'000'000};
    layer.output = Bytes{head ? 0 : 4'000'000};
    layer.kept_for_input = Bytes{20'000'000};
    layer.kept_for_weight = Bytes{10'000'000};
  }
  return profile;
}

/// That `auto` is no slower than any of them.
void check_beside_names(const Profile& profile, const Cluster& cluster, PlanRequest request) {
  double best = std::numeric_limits<double>::infinity();
  std::string name;
  for (const Schedule& schedule : schedules()) {
    if (!schedule.synchronous || schedule.searched) continue;
    request.schedule.name = schedule.name;
    const double step = make_plan(profile, cluster, request).best.step().value;
    if (step < best) name = schedule.name;
    best = std::min(best, step);
  }
  request.schedule.name = "auto";
  const double found = make_plan(profile, cluster, request).best.step().value;
  INFO(fmt::format("auto {:.6f}, {} {:.6f}", found, name, best));
  CHECK(found <= best * (1 + 1e-9));
}

}  // namespace

TEST_CASE("auto searches layouts with replicas, and those that are asked for", "[auto_plans]") {
  std::mt19937_64 random(2);
  const Profile profile = chain_of(8, true, random);
  const Cluster cluster = flat_cluster("one machine", 4, {Seconds{2e-5}, 1e12});
  PlanRequest request;
  request.micro_batches = 8;
  request.search.cut_work = 50'000'000;
  request.search.work = 100'000;
  request.schedule.name = "auto";
  const double plain = make_plan(profile, cluster, request).best.step().value;
  request.replicate = true;
  const PlanResult free = make_plan(profile, cluster, request);
  CHECK(free.best.plan.placement().replicated());  // links cost nothing here
  CHECK(free.best.step().value < plain * 0.95);
  request.widths = {2, 2};
  const PlanResult asked = make_plan(profile, cluster, request);
  const Placement placement = asked.best.plan.placement();
  for (int stage = 0; stage < placement.stages(); ++stage) CHECK(placement.replicas(StageId{stage}) == 2);
  CHECK(asked.best.step().value >= free.best.step().value);
  request.widths = {3, 1};  // only straight stages may be so
  request.cuts = {6};
  CHECK(make_plan(profile, cluster, request).best.plan.cuts() == std::vector<int>{6});
}

TEST_CASE("a plan of auto is no slower than the best plan of any schedule by name", "[auto_plans]") {
  std::mt19937_64 random(1);
  const bool replicate = GENERATE(false, true);
  for (int n = 0; n < 4; ++n) {
    const int devices = n < 3 ? 4 : 6;
    const Profile profile = chain_of(3 * devices + 2 * n, n % 2 == 0, random);
    const Cluster cluster = flat_cluster("one machine", devices, {Seconds{2e-5}, n < 2 ? 2e10 : 2e9});
    PlanRequest request;
    request.micro_batches = devices * (1 + n % 3);
    request.replicate = replicate;
    request.search.cut_work = 200'000'000;
    request.search.work = 200'000;
    INFO("case " << n << (replicate ? ", with replicas" : ""));
    check_beside_names(profile, cluster, request);
  }
}

TEST_CASE("nor where first layers are frozen and layers far apart share a weight", "[auto_plans]") {
  for (const int n : {2, 4, 7, 12, 15, 17, 85}) {
    std::mt19937_64 random(static_cast<std::uint64_t>(n));
    const auto below = [&](int most) {
      return static_cast<int>(random() % static_cast<std::uint64_t>(most));
    };
    Profile profile = chain_of(6 + below(5), false, random);
    std::vector<LayerProfile>& layers = profile.measurements.front().layers;
    const int frozen = n % 3 == 0 ? 0 : 1 + below(4);
    for (int i = 0; i < frozen; ++i) test::freeze(layers[to_size(i)]);
    const int last = static_cast<int>(layers.size()) - 1;
    if (n % 2 == 0) profile.ties = {{"shared", {frozen, last - below(2)}, Bytes{20'000'000}}};
    PlanRequest request;
    request.micro_batches = 2 * (1 + below(3));
    request.replicate = n % 4 == 3;
    request.search.cut_work = 200'000'000;
    request.search.work = 200'000;
    INFO("case " << n << ": " << frozen << " of " << layers.size() << " layers frozen");
    check_beside_names(profile, flat_cluster("one machine", 2, {Seconds{2e-5}, n % 5 < 2 ? 4e8 : 4e9}),
                       request);
  }
}

}  // namespace stagecraft
