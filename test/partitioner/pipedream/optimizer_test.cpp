// The optimizer against all plans there are, and against what PipeDream's own computes on its profiles.

#include "partitioner/pipedream/optimizer.h"

#include "base/error.h"
#include "base/json.h"
#include "partitioner/graph/branches.h"
#include "partitioner/graph/graph_text.h"
#include "test/partitioner/graph/random_graph.h"
#include "test/support/catch.h"

#include <rapidcheck.h>

#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <tuple>

namespace stagecraft::pipedream {
namespace {

const std::string kData = STAGECRAFT_TEST_DATA "/pipedream/";
constexpr double kNone = std::numeric_limits<double>::infinity();

/// One level's stage in an enumerated plan: up to state `to`, and with how many machines used up to then.
struct Part {
  int to;
  int replicas;
  int used;
};

/// Every plan, one by one, priced stage by stage from the formulas in optimizer.h.
class Enumeration {
 public:
  Enumeration(const StateGraph& states, const Options& options) : states_(states), options_(options) {}

  double best() const { return stretch(static_cast<int>(options_.levels.size()), -1, last()); }

 private:
  [[nodiscard]] int last() const { return static_cast<int>(states_.states.size()) - 1; }
  [[nodiscard]] double sum(double State::*member, int from, int to) const {
    const auto of = [&](int state) {
      return state < 0 ? 0.0 : states_.states[static_cast<std::size_t>(state)].*member;
    };
    return of(to) - of(from);
  }

  /// Behind state `from` up to `to`, on all that so many levels have.
  [[nodiscard]] double stretch(int levels, int from, int to) const {
    if (levels == 0) return sum(&State::compute, from, to);
    const auto [entry, fresh] = known_.try_emplace({levels, from, to}, kNone);
    if (!fresh) return entry->second;
    double best = kNone;
    std::vector<Part> parts;
    every_plan(levels, from, to, parts, best);
    return known_[{levels, from, to}] = best;
  }

  void every_plan(int levels, int from, int to, std::vector<Part>& parts, double& best) const {
    const Level& level = options_.levels[static_cast<std::size_t>(levels - 1)];
    const int before = parts.empty() ? from : parts.back().to;
    const int used = parts.empty() ? 0 : parts.back().used;
    if (before == to) {
      if (used == level.machines) best = std::min(best, price(levels, from, parts));
      return;
    }
    for (int state = 0; state <= to; ++state) {
      const auto& containing = states_.states[static_cast<std::size_t>(state)].before;
      if (state == before || !states_.states[static_cast<std::size_t>(to)].before.includes(containing))
        continue;
      if (before >= 0 && !containing.includes(states_.states[static_cast<std::size_t>(before)].before))
        continue;
      const int most = options_.straight ? 1 : level.machines - used;
      for (int replicas = 1; replicas <= std::min(most, level.machines - used); ++replicas) {
        const int idle = options_.fewer_machines ? level.machines - used - replicas : 0;
        if (!fits(level, before, state, replicas, used + replicas)) continue;
        for (int left = 0; left <= idle; ++left) {
          parts.push_back({state, replicas, used + replicas + left});
          every_plan(levels, from, to, parts, best);
          parts.pop_back();
        }
      }
    }
  }

  [[nodiscard]] bool fits(const Level& level, int from, int to, int replicas, int used) const {
    if (!options_.memory) return true;
    const double kept = sum(&State::activations, from, to) + sum(&State::parameters, from, to);
    return kept * std::ceil(static_cast<double>(level.machines - used) / replicas) <= *options_.memory;
  }

  [[nodiscard]] double price(int levels, int from, const std::vector<Part>& parts) const {
    const Level& level = options_.levels[static_cast<std::size_t>(levels - 1)];
    const double within = levels == 1 ? 1 : options_.levels[static_cast<std::size_t>(levels - 2)].machines;
    double worst = -kNone;
    int before = from;
    for (std::size_t s = 0; s < parts.size(); ++s) {
      const Part& part = parts[s];
      const double m = part.replicas;
      const double wires = level.bytes_per_second * m;
      const double all_reduce = 4 * (m - 1) * sum(&State::parameters, before, part.to) / wires;
      const double compute = stretch(levels - 1, before, part.to);
      worst = std::max(worst, (compute + (s == 0 ? all_reduce / within : all_reduce)) / m);
      if (options_.compression && s > 0) {
        const auto transfer = [&](int state) {
          return 2 * states_.states[static_cast<std::size_t>(state)].output / wires / *options_.compression;
        };
        worst = std::max(worst, transfer(before));
        if (part.to != last()) worst = std::max(worst, transfer(part.to));
      }
      before = part.to;
    }
    return worst;
  }

  const StateGraph& states_;
  const Options& options_;
  mutable std::map<std::tuple<int, int, int>, double> known_;  // stretches seen before
};

Options random_options() {
  constexpr std::array kBandwidths{2.0, 7.0, 30.0, 1000.0};
  Options options;
  const int levels = 1 + test::random_below(3);
  const int most_machines = levels == 1 ? 5 : levels == 2 ? 3 : 2;
  for (int l = 0; l < levels; ++l) {
    options.levels.push_back({1 + test::random_below(most_machines),
                              kBandwidths[static_cast<std::size_t>(test::random_below(kBandwidths.size()))]});
  }
  options.straight = test::random_below(4) == 0;
  options.fewer_machines = test::random_below(3) == 0;
  if (test::random_below(3) == 0) options.memory = 1 + test::random_below(400);
  if (test::random_below(2) == 0)
    options.compression = std::array{0.5, 1.0, 3.0}[static_cast<std::size_t>(test::random_below(3))];
  return options;
}

void check_plan(const StateGraph& states, const Result& result) {
  std::set<int> nodes;
  std::size_t listed = 0;
  int devices = result.devices_left;
  double bottleneck = -kNone;
  int before = -1;
  for (const Stage& stage : result.stages) {
    CHECK(stage.from == before);
    before = stage.to;
    nodes.insert(stage.nodes.begin(), stage.nodes.end());
    listed += stage.nodes.size();
    devices += stage.devices();
    bottleneck = std::max(bottleneck, stage.time);
  }
  const std::vector<int> all = states.states.back().before.nodes();
  CHECK(listed == all.size());
  CHECK(nodes == std::set<int>(all.begin(), all.end()));
  CHECK(devices == result.devices);
  CHECK(bottleneck == Approx(result.bottleneck).epsilon(1e-12));
}

}  // namespace

TEST_CASE("no plan is better under PipeDream's model", "[pipedream_optimizer]") {
  REQUIRE(rc::check("against all plans", [] {
    int planned = 0;
    int cut = 0;
    for (int n = 0; n < 20; ++n) {
      const Options options = random_options();
      const LayerGraph graph = test::random_graph(6);
      StateGraph states;
      try {
        states = make_states(graph);
      } catch (const InputError&) {
        continue;  // nothing but inputs and unused outputs
      }
      const double best = Enumeration(states, options).best();
      try {
        const Result result = optimize(states, options);
        RC_ASSERT(std::abs(result.bottleneck - best) <= 1e-12 * best);
        check_plan(states, result);
        ++planned;
        cut += result.stages.size() > 1 ? 1 : 0;
      } catch (const RefusedError&) {
        RC_ASSERT(best == kNone);
      }
    }
    RC_CLASSIFY(planned > 10, "mostly possible");
    RC_CLASSIFY(cut > 5, "with cuts");
  }));
}

TEST_CASE("PipeDream's own optimizer gets the same bottlenecks on its profiles", "[pipedream_optimizer]") {
  const Json expected = json::parse_file(kData + "expected.json");
  std::map<std::string, StateGraph> profiles;
  for (const auto& [name, states] : expected["states"].items()) {
    profiles[name] = make_states(read_graph(kData + name + ".graph.txt"));
    INFO(name);
    CHECK(profiles[name].states.size() == states.get<std::size_t>());
  }
  REQUIRE(expected["runs"].size() >= 100);
  for (const Json& run : expected["runs"]) {
    INFO(run.dump());
    Options options;
    for (std::size_t l = 0; l < run["devices"].size(); ++l) {
      options.levels.push_back({run["devices"][l].get<int>(), run["bandwidths"][l].get<double>()});
    }
    options.straight = run.value("straight", false);
    options.fewer_machines = run.value("fewer_machines", false);
    if (run.contains("compression")) options.compression = run["compression"].get<double>();
    if (run.contains("memory_bytes")) options.memory = run["memory_bytes"].get<double>();
    const StateGraph& states = profiles.at(run["profile"].get<std::string>());
    const Result result = optimize(states, options);
    CHECK(result.bottleneck == Approx(run["bottleneck_s"].get<double>()).epsilon(1e-12));
    if (run.contains("data_parallel_s")) {
      CHECK(result.data_parallel == Approx(run["data_parallel_s"].get<double>()).epsilon(1e-12));
    }
    check_plan(states, result);
  }
}

TEST_CASE("Inception's branches are compressed before it is planned", "[pipedream_optimizer]") {
  const LayerGraph graph = read_graph(kData + "inception_v3.graph.txt");
  CHECK_THROWS_AS(make_states(graph), RefusedError);
  const StateGraph states = make_states(compress_branches(graph).graph);
  CHECK(states.states.size() == 1646);
  Options options;
  options.levels = {{4, 12e9}};
  options.compression = 1;
  CHECK(optimize(states, options).bottleneck == Approx(0.17419970192592593).epsilon(1e-12));
  options.levels = {{4, 12e9}, {4, 1.25e9}};  // PipeDream's own takes too long to compare
  check_plan(states, optimize(states, options));
}

TEST_CASE("of equal plans the first cut and the narrowest last stage are taken", "[pipedream_optimizer]") {
  LayerGraph graph;  // two nodes of nothing between two of four seconds
  for (const double work : {4.0, 0.0, 0.0, 4.0}) {
    graph.nodes.push_back(test::plain_node(static_cast<int>(graph.nodes.size()), work, 1, 100));
    if (graph.nodes.size() > 1) {
      graph.edges.push_back(
          {static_cast<int>(graph.nodes.size()) - 2, static_cast<int>(graph.nodes.size()) - 1});
    }
  }
  Options options;
  options.levels = {{2, 1}};
  const StateGraph states = make_states(graph);
  const Result result = optimize(states, options);
  REQUIRE(result.stages.size() == 2);
  CHECK(result.stages[0].nodes == std::vector<int>{0});
  options.levels = {{1, 1}};
  CHECK(optimize(states, options).stages.size() == 1);
}

TEST_CASE("plans that cannot be are refused with the reason", "[pipedream_optimizer]") {
  LayerGraph graph;
  graph.nodes.push_back(test::plain_node(0, 4, 1000, 1000));
  graph.nodes.push_back(test::plain_node(1, 4, 1000, 1000));
  graph.edges = {{0, 1}};
  const StateGraph states = make_states(graph);
  Options options;
  CHECK_THROWS_AS(optimize(states, options), InputError);  // no levels
  options.levels = {{3, 1e9}};
  options.straight = true;
  CHECK_THROWS_AS(optimize(states, options), RefusedError);  // three stages of two nodes
  options.fewer_machines = true;
  CHECK(optimize(states, options).devices_left == 1);
  options.memory = 10;
  CHECK_THROWS_AS(optimize(states, options), RefusedError);  // whatever has followers keeps too much
  options.straight = false;
  CHECK(optimize(states, options).stages.size() == 1);  // which the last stage has not
  options.levels = {{0, 1e9}};
  CHECK_THROWS_AS(optimize(states, options), InputError);
  options.levels = {{1, std::nan("")}};
  CHECK_THROWS_AS(optimize(states, options), InputError);
  options.levels = {{1, 1}};
  options.compression = 0;
  CHECK_THROWS_AS(optimize(states, options), InputError);
  options.compression.reset();
  options.levels = {{1000, 1}, {1000, 1}};  // as much as is let through, and more than is computed
  LayerGraph long_chain;
  for (int n = 0; n < 2000; ++n) {
    long_chain.nodes.push_back(test::plain_node(n, 4, 1, 1));
    if (n > 0) long_chain.edges.push_back({n - 1, n});
  }
  const StateGraph many = make_states(long_chain);
  CHECK_THROWS_AS(optimize(many, options), RefusedError);
}

}  // namespace stagecraft::pipedream
