#include "test/partitioner/loop_case.h"

#include "partitioner/search/plan_maker.h"
#include "schedules/checker/peak_forms.h"
#include "schedules/generators/registry.h"
#include "schedules/lowering/lowering.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <utility>

namespace stagecraft::test {
namespace {

using Random = std::mt19937_64;

int between(Random& random, int low, int high) {
  return std::uniform_int_distribution<int>(low, high)(random);
}

enum class Family { transformer, early_heavy, uneven };

/// What a layer takes, relative to others.
struct Shape {
  double time = 1, weights = 1, kept = 1, output = 1;
};

std::vector<Shape> shapes(Family family, int layers, Random& random) {
  std::vector<Shape> all;
  std::lognormal_distribution<double> uneven(0, 0.6);
  for (int i = 0; i < layers; ++i) {
    const double at = static_cast<double>(i) / layers;
    Shape shape;
    if (family == Family::transformer) {
      shape = i % 2 == 0 ? Shape{1, 1, 1.2, 1} : Shape{1.6, 2, 1, 1};
      if (i == 0) shape = {0.2, 6, 0.1, 1};
      if (i + 1 == layers) shape = {4, 6, 8, 0.1};
    } else if (family == Family::early_heavy) {
      const double early = std::pow(0.5, std::floor(at * 4));
      shape = {1 + uneven(random) * 0.5, 0.02 + at * at * uneven(random), 4 * early * uneven(random),
               4 * early * (0.5 + between(random, 0, 2))};
    } else {
      shape = {uneven(random), uneven(random) * uneven(random), uneven(random) * uneven(random),
               uneven(random)};
    }
    all.push_back(shape);
  }
  return all;
}

LayerProfile layer_of(const Shape& shape, int index, double milliseconds, double megabytes,
                      bool weight_kept) {
  LayerProfile layer;
  layer.name = fmt::format("layer{}", index);
  const double time = milliseconds * 1e-3 * shape.time;
  layer.forward.median = Seconds{time};
  layer.backward_input.median = Seconds{time * 0.9};
  layer.backward_weight.median = Seconds{time * 0.8};
  layer.step.median = Seconds{time * 0.05 * shape.weights};
  const auto bytes = [&](double share) { return Bytes{static_cast<std::int64_t>(megabytes * 1e6 * share)}; };
  layer.parameters = bytes(6 * shape.weights);
  layer.output = bytes(shape.output);
  layer.kept_for_input = bytes(3 * shape.kept);
  if (weight_kept) layer.kept_for_weight = bytes(1.5 * shape.kept);
  layer.keeps_input = index % 2 == 0;
  layer.forward_transient = bytes(0.5 * shape.kept);
  layer.backward_transient = bytes(0.7 * shape.kept);
  return layer;
}

struct Limits {
  int least_layers, most_layers, least_devices, most_devices;
};

LoopCase case_of(const std::string& schedule_name, std::uint64_t seed, const Limits& limits) {
  Random random(seed * 7919 + std::hash<std::string>()(schedule_name) % 1000);
  const Schedule& schedule = find_schedule(schedule_name);
  LoopCase one;
  const auto family = static_cast<Family>(seed % 3);
  const int per_rank = schedule.placement == PlacementKind::loop && between(random, 0, 2) == 0 ? 3 : 2;
  const int devices = between(random, limits.least_devices, limits.most_devices);
  const int stages = devices * per_rank;
  const int layers = between(random, std::max(limits.least_layers, stages + 2), limits.most_layers);
  const int micro_batches = devices * between(random, 1, 4);
  Measurement& measurement = one.profile.measurements.emplace_back();
  measurement.input = Bytes{1'000'000};
  measurement.targets = Bytes{4'000};
  const bool weight_kept = between(random, 0, 1) == 0;
  int index = 0;
  for (const Shape& shape : shapes(family, layers, random)) {
    measurement.layers.push_back(layer_of(shape, index++, 1.5, 8, weight_kept));
  }
  one.profile.optimizer_bytes_per_parameter_byte = 2;
  const double slow = between(random, 0, 2) == 0 ? 1e9 : 2e10;
  one.cluster = flat_cluster("one machine", devices, {Seconds{1e-5}, 2.5e10});
  const bool machines = devices % 2 == 0 && between(random, 0, 1) == 0;
  if (machines) {
    one.cluster.levels = {{devices / 2, {Seconds{1e-5}, 2.5e10}, SharedBy::pair},
                          {2, {Seconds{3e-5}, slow}, SharedBy::child}};
  }
  one.request.schedule.name = schedule_name;
  one.request.micro_batches = micro_batches;
  one.request.stages = stages;
  one.request.virtual_stages = per_rank;
  constexpr std::array kFamilies{"transformer", "early_heavy", "uneven"};
  one.name = fmt::format("{} of {} layers on {} devices{}, {} stages, {} micro-batches",
                         kFamilies[static_cast<std::size_t>(family)], layers, devices,
                         machines ? " of two machines" : "", stages, micro_batches);
  return one;
}

/// Cuts after equal shares of what layers have.
std::vector<int> even_by(const std::vector<double>& weight, int stages) {
  const int layers = static_cast<int>(weight.size());
  const double all = std::accumulate(weight.begin(), weight.end(), 0.0);
  std::vector<int> cuts;
  double sum = 0;
  int layer = 0;
  for (int s = 1; s < stages; ++s) {
    while (layer < layers && sum + weight[to_size(layer)] / 2 < all * s / stages)
      sum += weight[to_size(layer++)];
    const int least = cuts.empty() ? 1 : cuts.back() + 1;
    cuts.push_back(std::clamp(layer, least, layers - (stages - s)));
  }
  return cuts;
}

}  // namespace

LoopCase large_case(const std::string& schedule, std::uint64_t seed) {
  return case_of(schedule, seed, {40, 350, 4, 16});
}

LoopCase medium_case(const std::string& schedule, std::uint64_t seed) {
  return case_of(schedule, seed, {40, 90, 4, 6});
}

LoopCase small_case(const std::string& schedule, std::uint64_t seed) {
  return case_of(schedule, seed, {12, 40, 2, 6});
}

Samples::Samples(const LoopCase& one, int count, std::uint64_t seed) {
  Random random(seed + 17);
  const std::vector<LayerProfile>& layers = one.profile.measurements.front().layers;
  const int stages = *one.request.stages;
  const auto by = [&](auto of) {
    std::vector<double> weight;
    for (const LayerProfile& layer : layers) weight.push_back(of(layer));
    return even_by(weight, stages);
  };
  std::vector<std::pair<std::vector<int>, const char*>> all;
  const auto time = [](const LayerProfile& layer) {
    return (layer.forward.median + layer.backward_input.median + layer.backward_weight.median).value;
  };
  const auto kept = [](const LayerProfile& layer) { return static_cast<double>(layer.kept_for_input.value); };
  const auto weights = [](const LayerProfile& layer) { return static_cast<double>(layer.parameters.value); };
  all.emplace_back(by([](const LayerProfile&) { return 1.0; }), "even layers");
  all.emplace_back(by(time), "even time");
  all.emplace_back(by(kept), "even kept");
  all.emplace_back(by(weights), "even weights");
  for (int i = 0; i < count; ++i) {
    if (i % 2 == 0) {
      std::set<int> cuts;
      while (static_cast<int>(cuts.size()) < stages - 1)
        cuts.insert(between(random, 1, static_cast<int>(layers.size()) - 1));
      all.emplace_back(std::vector<int>(cuts.begin(), cuts.end()), "random");
      continue;
    }
    // Even by a mixture, moved about.
    const double mixture = std::uniform_real_distribution<double>(0, 1)(random);
    double all_time = 0, all_kept = 0;
    for (const LayerProfile& layer : layers) {
      all_time += time(layer);
      all_kept += kept(layer);
    }
    std::vector<int> cuts = by([&](const LayerProfile& layer) {
      return mixture * time(layer) / all_time + (1 - mixture) * kept(layer) / all_kept;
    });
    const int reach = between(random, 0, 3);
    for (std::size_t c = 0; c < cuts.size(); ++c) {
      const int low = c == 0 ? 1 : cuts[c - 1] + 1;
      const int high = (c + 1 == cuts.size() ? static_cast<int>(layers.size()) : cuts[c + 1]) - 1;
      cuts[c] = std::clamp(cuts[c] + between(random, -reach, reach), low, std::max(low, high));
    }
    all.emplace_back(std::move(cuts), i % 4 == 1 ? "near even" : "near mixture");
  }
  for (auto& [cuts, kind] : all) add(one, std::move(cuts), kind);
  std::ranges::sort(samples_, {}, &Sample::memory);
}

void Samples::add(const LoopCase& one, std::vector<int> cuts, const char* kind) {
  PlanRequest request = one.request;
  request.stages.reset();
  request.cuts = cuts;
  const PlanResult priced = make_plan(one.profile, one.cluster, request);
  samples_.push_back({std::move(cuts), priced.best.step(), priced.best.memory(), kind});
}

void Samples::add_least(const LoopCase& one) {
  const planning::PlanMaker maker(one.profile, one.cluster, one.request);
  const planning::Layout layout = planning::straight_layout(
      maker.schedule().placement, *one.request.virtual_stages, one.cluster.devices());
  const LoweredProgram program = lower(maker.schedule().generate(maker.schedule_request(
      layout, {one.request.micro_batches}, RecomputeSettings(to_size(layout.stages())))));
  const PeakForms forms(program);
  std::vector<int> cuts = samples_.front().cuts;
  const auto needs = [&] {
    double sum = 0;  // of powers: that of the rank that needs most counts
    for (std::size_t rank = 0; rank < forms.ranks(); ++rank) {
      std::vector<const StageCosts*> held;
      for (const StageId stage : forms.stages(rank)) {
        const int first = stage.value == 0 ? 0 : cuts[stage.index() - 1];
        held.push_back(
            &maker.costs_of(first, stage.index() == cuts.size() ? maker.layers() : cuts[stage.index()]));
      }
      sum += std::pow(static_cast<double>(forms.peak(rank, held, Bytes{}).value) * 1e-9, 16);
    }
    return sum;
  };
  const auto valid = [&] {
    int before = 0;
    return cuts.back() < maker.cuttable() &&
           std::ranges::all_of(cuts, [&](int cut) { return std::exchange(before, cut) < cut; });
  };
  double least = needs();
  for (bool again = true; again;) {
    again = false;
    for (std::size_t low = 0; low < cuts.size(); ++low) {
      for (std::size_t high = low; high < cuts.size(); ++high) {
        for (const int by : {4, -4, 2, -2, 1, -1}) {
          const std::vector<int> kept = cuts;
          for (std::size_t c = low; c <= high; ++c) cuts[c] += by;
          const double now = valid() ? needs() : std::numeric_limits<double>::infinity();
          if (now < least * (1 - 1e-9)) {
            least = now;
            again = true;
          } else {
            cuts = kept;
          }
        }
      }
    }
  }
  add(one, std::move(cuts), "least met");
  std::ranges::sort(samples_, {}, &Sample::memory);
}

const Sample* Samples::best(std::optional<Bytes> cap) const {
  const Sample* best = nullptr;
  for (const Sample& sample : samples_) {
    if (cap && sample.memory > *cap) break;
    if (best == nullptr || sample.step < best->step) best = &sample;
  }
  return best;
}

Bytes Samples::memory_at(double share) const {
  return samples_[static_cast<std::size_t>(share * static_cast<double>(samples_.size() - 1))].memory;
}

}  // namespace stagecraft::test
