// min_max_cuts against all partitions there are.

#include "partitioner/search/min_max.h"

#include "test/partitioner/random_profile.h"
#include "test/support/catch.h"

#include <rapidcheck.h>

#include <random>
#include <set>
#include <tuple>

namespace stagecraft {
namespace {

using namespace planning;

using Possible = StageSettings::Possible;

StageSettings settings_of(int stages, int layers, std::optional<Recompute> asked = Recompute::none,
                          Possible possible = {}) {
  return {Placement::straight(stages), layers, allowed_settings(asked), std::move(possible)};
}

Network link_network(int devices, double latency, double bytes_per_second) {
  return Network{{NetworkLevel{devices, Link{Seconds{latency}, bytes_per_second}}}};
}

double work(const Measurement& m, int first, int last) {
  double sum = 0;
  for (int i = first; i < last; ++i) {
    const LayerProfile& layer = m.layers[static_cast<std::size_t>(i)];
    sum += (layer.forward.median + layer.backward_input.median + layer.backward_weight.median).value;
  }
  return sum;
}

/// (bottleneck, sum of squares, cuts) of one partition.
using Score = std::tuple<double, double, std::vector<int>>;

std::optional<Score> score(const Measurement& m, const Network& network, const std::vector<double>& speed,
                           const StageSettings& settings, int micro_batches, const std::vector<int>& cuts) {
  double bottleneck = 0;
  double squares = 0;
  const int stages = static_cast<int>(cuts.size()) + 1;
  for (int s = 0; s < stages; ++s) {
    const int first = s == 0 ? 0 : cuts[static_cast<std::size_t>(s - 1)];
    const int last = s + 1 == stages ? static_cast<int>(m.layers.size()) : cuts[static_cast<std::size_t>(s)];
    const auto setting = settings.least(StageId{s}, first, last);
    if (!setting) return std::nullopt;
    double time = work(m, first, last);
    for (int i = first; i < last; ++i) {
      const double times = recomputed_share(*setting, 1, micro_batches);
      time += times * m.layers[static_cast<std::size_t>(i)].forward.median.value;
    }
    time /= speed.empty() ? 1 : speed[static_cast<std::size_t>(s)];
    bottleneck = std::max(bottleneck, time);
    squares += time * time;
    if (s > 0) {
      const Bytes output = m.layers[static_cast<std::size_t>(first - 1)].output;
      bottleneck = std::max(bottleneck, network.between(Rank{s - 1}, Rank{s}).time(output).value);
    }
  }
  return Score{bottleneck, squares, cuts};
}

void every_partition(int layers, int stages, std::vector<int>& cuts, const std::function<void()>& visit) {
  if (static_cast<int>(cuts.size()) == stages - 1) {
    visit();
    return;
  }
  for (int cut = cuts.empty() ? 1 : cuts.back() + 1; cut < layers; ++cut) {
    cuts.push_back(cut);
    every_partition(layers, stages, cuts, visit);
    cuts.pop_back();
  }
}

}  // namespace

TEST_CASE("the partition is the best there is, ties included", "[min_max]") {
  REQUIRE(rc::check("against all partitions", [] {
    const int layers = *rc::gen::inRange(1, 10);
    const int stages = *rc::gen::inRange(1, layers + 1);
    const Measurement m = test::random_measurement(layers);
    // Powers of two keep every quotient exact, so that ties are ties.
    const Network network =
        link_network(stages, *rc::gen::inRange(0, 3), *rc::gen::element(0.5, 1.0, 2.0, 64.0));
    std::vector<double> speed;
    if (*rc::gen::arbitrary<bool>()) {
      for (int s = 0; s < stages; ++s) speed.push_back(*rc::gen::element(0.5, 1.0, 2.0));
    }
    std::set<std::tuple<Recompute, int, int, int>> forbidden;
    const auto asked = *rc::gen::element<std::optional<Recompute>>(std::nullopt, Recompute::none);
    for (int n = *rc::gen::inRange(0, 20); n > 0; --n) {
      forbidden.insert({*rc::gen::elementOf(allowed_settings(asked)), *rc::gen::inRange(0, stages),
                        *rc::gen::inRange(0, layers), *rc::gen::inRange(1, layers + 1)});
    }
    const StageSettings settings =
        settings_of(stages, layers, asked, [&](Recompute setting, StageId s, int first, int last) {
          return !forbidden.contains({setting, s.value, first, last});
        });
    constexpr int kMicroBatches = 4;

    std::optional<Score> best;
    std::vector<int> cuts;
    every_partition(layers, stages, cuts, [&] {
      const auto found = score(m, network, speed, settings, kMicroBatches, cuts);
      if (found && (!best || *found < *best)) best = found;
    });
    const auto planned =
        min_max_cuts(m, network, Placement::straight(stages), speed, settings, kMicroBatches);
    RC_CLASSIFY(!best, "nothing fits");
    RC_ASSERT(planned.has_value() == best.has_value());
    RC_CLASSIFY(!asked.has_value(), "settings chosen");
    if (best) RC_ASSERT(*planned == std::get<2>(*best));
  }));
}

TEST_CASE("an expensive boundary is not cut", "[min_max]") {
  Measurement m;
  for (int i = 0; i < 4; ++i) m.layers.push_back(test::plain_layer(i, 1, i == 1 ? 1000 : 1));
  CHECK(min_max_cuts(m, link_network(2, 0, 1e6), Placement::straight(2), {}, settings_of(2, 4)) ==
        std::vector<int>{2});
  CHECK(min_max_cuts(m, link_network(2, 0, 100), Placement::straight(2), {}, settings_of(2, 4)) ==
        std::vector<int>{1});
}

TEST_CASE("a faster device gets more layers", "[min_max]") {
  Measurement m;
  for (int i = 0; i < 6; ++i) m.layers.push_back(test::plain_layer(i, 1, 1));
  CHECK(min_max_cuts(m, link_network(2, 0, 1e9), Placement::straight(2), {2, 1}, settings_of(2, 6)) ==
        std::vector<int>{4});
}

TEST_CASE("a thousand layers on 64 stages", "[min_max]") {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> some(0.5, 2);
  Measurement m;
  for (int i = 0; i < 1000; ++i) m.layers.push_back(test::plain_layer(i, some(random), 1));
  const auto cuts =
      min_max_cuts(m, link_network(64, 0, 1e9), Placement::straight(64), {}, settings_of(64, 1000));
  REQUIRE(cuts->size() == 63);
}

}  // namespace stagecraft
