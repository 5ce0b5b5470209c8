#include "stagecraft/cli/plan_pipedream.h"

#include "stagecraft/base/json.h"
#include "stagecraft/base/table.h"
#include "stagecraft/cli/output.h"
#include "stagecraft/cli/plan_profile.h"
#include "stagecraft/partitioner/cluster.h"
#include "stagecraft/partitioner/graph/branches.h"
#include "stagecraft/partitioner/graph/chain.h"
#include "stagecraft/partitioner/pipedream/optimizer.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <vector>

namespace stagecraft::cli {
namespace {

using pipedream::Options;
using pipedream::Result;
using pipedream::Stage;
using pipedream::StateGraph;

/// The graph as it was planned: its branches compressed where there were too many places to cut.
struct Prepared {
  LayerGraph graph;
  CompressedGraph compressed;  ///< empty when it was not
  StateGraph states;

  [[nodiscard]] bool is_compressed() const { return !compressed.members.empty(); }
  /// A stage's nodes in the graph given, in the order in which they are computed.
  [[nodiscard]] std::vector<int> nodes_of(const Stage& stage, const std::vector<int>& rank) const {
    std::vector<int> nodes;
    for (const int node : stage.nodes) {
      const int place = states.original[static_cast<std::size_t>(node)];
      if (is_compressed()) {
        const std::vector<int>& members = compressed.members[static_cast<std::size_t>(place)];
        nodes.insert(nodes.end(), members.begin(), members.end());
      } else {
        nodes.push_back(place);
      }
    }
    std::sort(nodes.begin(), nodes.end(), [&](int a, int b) {
      return rank[static_cast<std::size_t>(a)] < rank[static_cast<std::size_t>(b)];
    });
    return nodes;
  }
};

Prepared prepare(LayerGraph graph) {
  Prepared prepared;
  prepared.graph = std::move(graph);
  try {
    prepared.states = pipedream::make_states(prepared.graph);
  } catch (const RefusedError&) {
    prepared.compressed = compress_branches(prepared.graph);
    prepared.states = pipedream::make_states(prepared.compressed.graph);
  }
  return prepared;
}

/// By node, its place in a row along the edges.
std::vector<int> ranks_of(const LayerGraph& graph) {
  const std::vector<int> order = narrow_order(graph);
  std::vector<int> rank(order.size());
  for (std::size_t n = 0; n < order.size(); ++n)
    rank[static_cast<std::size_t>(order[n])] = static_cast<int>(n);
  return rank;
}

/// Shares of a stage's time, a mini-batch.
struct Shares {
  double compute = 0;
  double all_reduce = 0;
  double transfer = 0;  ///< at the same time as the other two

  [[nodiscard]] const char* bound() const {
    if (transfer > compute + all_reduce) return "transfer";
    return all_reduce > compute ? "all-reduce" : "compute";
  }
};

Shares shares_of(const Stage& stage) {
  Shares shares;
  double outside = 1;  // replicas of the levels outside the one looked at
  for (auto level = stage.levels.rbegin(); level != stage.levels.rend(); ++level) {
    shares.transfer = std::max(shares.transfer, level->transfer / outside);
    outside *= level->replicas;
    shares.all_reduce += level->all_reduce / outside;
  }
  shares.compute = stage.compute / outside;
  return shares;
}

std::vector<int> replicas_of(const Stage& stage) {
  std::vector<int> replicas;
  for (const pipedream::StageLevel& level : stage.levels) replicas.push_back(level.replicas);
  return replicas;
}

std::string table_text(const Prepared& prepared, const Result& result) {
  const std::vector<int> rank = ranks_of(prepared.graph);
  Table table({"stage", "nodes", "<from .. to", "devices", "compute ms", "all-reduce ms", "transfer ms", "ms",
               "parameters", "<bound by"});
  for (std::size_t s = 0; s < result.stages.size(); ++s) {
    const Stage& stage = result.stages[s];
    const std::vector<int> nodes = prepared.nodes_of(stage, rank);
    const auto name = [&](int node) {
      const LayerNode& n = prepared.graph.nodes[static_cast<std::size_t>(node)];
      return n.id == n.kind() ? n.id : n.id + " " + n.kind();
    };
    const Shares shares = shares_of(stage);
    const std::vector<int> replicas = replicas_of(stage);
    table.row({fmt::format("{}", s), fmt::format("{}", nodes.size()),
               nodes.size() == 1 ? name(nodes.front()) : name(nodes.front()) + " .. " + name(nodes.back()),
               replicas.size() == 1 ? fmt::format("{}", stage.devices())
                                    : fmt::format("{} = {}", stage.devices(), fmt::join(replicas, " x ")),
               format_ms(Seconds{shares.compute}), format_ms(Seconds{shares.all_reduce}),
               format_ms(Seconds{shares.transfer}), format_ms(Seconds{stage.time}),
               format_bytes(Bytes{static_cast<std::int64_t>(stage.parameters)}), shares.bound()});
  }
  return table.text();
}

std::string times(double faster) { return fmt::format("{:.2f}x", faster); }

std::string plan_text(const std::string& profile, const Cluster& cluster, const Options& options,
                      const Prepared& prepared, const Result& result) {
  std::string out =
      fmt::format("{} on {}: {} stage{} on {} device{}, by PipeDream's cost model\n\n",
                  std::filesystem::path(profile).filename().string(),
                  cluster.name.empty() ? fmt::format("{} devices", result.devices) : cluster.name,
                  result.stages.size(), result.stages.size() == 1 ? "" : "s",
                  result.devices - result.devices_left, result.devices - result.devices_left == 1 ? "" : "s");
  out += table_text(prepared, result) + "\n";
  const auto line = [&](const char* key, const std::string& value) {
    out += fmt::format("  {:<13} {}\n", key, value);
  };
  const Seconds ideal{result.one_device / result.devices};
  line("bottleneck",
       fmt::format("{} a mini-batch, {} one device ({}); with all compute spread evenly {}",
                   format_duration(Seconds{result.bottleneck}), times(result.one_device / result.bottleneck),
                   format_duration(Seconds{result.one_device}), format_duration(ideal)));
  line("data parallel", fmt::format("{} on all {} devices, {} one device; the plan is {} that",
                                    format_duration(Seconds{result.data_parallel}), result.devices,
                                    times(result.one_device / result.data_parallel),
                                    times(result.data_parallel / result.bottleneck)));
  line("transfers", options.compression ? fmt::format("priced, compressed {} to 1", *options.compression)
                                        : "take no time (--activation-compression-ratio 1 prices them)");
  if (result.devices_left > 0) line("left over", fmt::format("{} devices", result.devices_left));
  line("searched", fmt::format("{} places to cut", prepared.states.states.size()));
  if (prepared.is_compressed()) {
    line("coarsened", fmt::format("{} nodes to {}: chains behind forks are one node each, too many places to "
                                  "cut otherwise",
                                  prepared.graph.nodes.size(), prepared.compressed.graph.nodes.size()));
  }
  return out;
}

Json plan_json(const std::string& profile, const Options& options, const Prepared& prepared,
               const Result& result) {
  const auto ms = [](double seconds) { return seconds * 1e3; };
  const std::vector<int> rank = ranks_of(prepared.graph);
  Json json;
  json["cost"] = "pipedream";
  json["profile"] = profile;
  json["levels"] = Json::array();
  for (const pipedream::Level& level : options.levels) {
    json["levels"].push_back({{"machines", level.machines}, {"bytes_per_second", level.bytes_per_second}});
  }
  json["states"] = prepared.states.states.size();
  json["coarsened"] = prepared.is_compressed();
  json["bottleneck_ms"] = ms(result.bottleneck);
  json["one_device_ms"] = ms(result.one_device);
  json["data_parallel_ms"] = ms(result.data_parallel);
  json["devices"] = result.devices;
  json["devices_left"] = result.devices_left;
  json["stages"] = Json::array();
  for (const Stage& stage : result.stages) {
    const Shares shares = shares_of(stage);
    Json nodes = Json::array();
    for (const int node : prepared.nodes_of(stage, rank)) {
      nodes.push_back(prepared.graph.nodes[static_cast<std::size_t>(node)].id);
    }
    json["stages"].push_back({{"nodes", std::move(nodes)},
                              {"replicas", replicas_of(stage)},
                              {"devices", stage.devices()},
                              {"compute_ms", ms(shares.compute)},
                              {"all_reduce_ms", ms(shares.all_reduce)},
                              {"transfer_ms", ms(shares.transfer)},
                              {"time_ms", ms(stage.time)},
                              {"parameter_bytes", static_cast<std::int64_t>(stage.parameters)},
                              {"bound_by", shares.bound()}});
  }
  return json;
}

/// What the model has no word for must not look as if it had been heeded.
void refuse_other_options(const CLI::App& plan) {
  static const std::set<std::string> kKnown{"--cost",
                                            "--profile",
                                            "--cluster",
                                            "--micro-batch-size",
                                            "--json",
                                            "--straight-pipeline",
                                            "--use-fewer-machines",
                                            "--use-memory-constraint",
                                            "--activation-compression-ratio"};
  for (const CLI::Option* option : plan.get_options()) {
    if (option->count() == 0 || kKnown.contains(option->get_name())) continue;
    if (option->get_positional()) {
      throw InputError("plan --cost pipedream takes no run config: give --profile and --cluster alone");
    }
    throw InputError({option->get_name(), ""},
                     "means nothing with --cost pipedream, which knows stages and their replicas alone: no "
                     "schedule, no micro-batches, no plan.json (--json prints its plan)");
  }
}

Options options_of(const PipedreamArguments& arguments, const Cluster& cluster, const std::string& file) {
  Options options;
  for (const NetworkLevel& level : cluster.levels) {
    options.levels.push_back({level.count, level.link.bytes_per_second});
  }
  options.straight = arguments.straight;
  options.fewer_machines = arguments.fewer_machines;
  options.compression = arguments.compression;
  if (arguments.memory) {
    if (!cluster.memory) {
      throw InputError({file, "/memory_bytes"}, "is not there; --use-memory-constraint needs it");
    }
    options.memory = static_cast<double>(cluster.usable_memory()->value);
  }
  if (!cluster.speed.empty()) note("PipeDream's cost model knows no speeds: all devices count as equal");
  return options;
}

}  // namespace

void add_pipedream_options(CLI::App& plan, PipedreamArguments& arguments) {
  CLI::Option* cost =
      plan.add_option(
              "--cost", arguments.cost,
              "pipedream: plan as PipeDream's optimizer does, replicas included; the options are its own")
          ->type_name("MODEL")
          ->check(CLI::IsMember({"pipedream"}));
  plan.add_flag("--straight-pipeline", arguments.straight, "--cost pipedream: one device per stage")
      ->needs(cost);
  plan.add_flag("--use-fewer-machines", arguments.fewer_machines,
                "--cost pipedream: devices may be left over")
      ->needs(cost);
  plan.add_flag("--use-memory-constraint", arguments.memory,
                "--cost pipedream: within the cluster's memory_bytes, as far as it counts memory")
      ->needs(cost);
  plan.add_option("--activation-compression-ratio", arguments.compression,
                  "--cost pipedream: price transfers, divided by R (default: they take no time)")
      ->type_name("R")
      ->check(CLI::Range(1e-6, 1e6))
      ->needs(cost);
}

void plan_pipedream(const PipedreamArguments& arguments, const std::string& profile,
                    const std::string& cluster_file, std::optional<std::int64_t> micro_batch_size,
                    bool as_json, const CLI::App& plan) {
  refuse_other_options(plan);
  if (profile.empty() || cluster_file.empty()) {
    throw InputError(
        "plan --cost pipedream: --profile (a graph.txt or a profile.json) and --cluster are required");
  }
  const Prepared prepared = prepare(read_layer_graph(profile, micro_batch_size));
  const Cluster cluster = read_cluster(cluster_file);
  const Options options = options_of(arguments, cluster, cluster_file);
  const Result result = pipedream::optimize(prepared.states, options);
  if (as_json) {
    print_json(plan_json(profile, options, prepared, result));
  } else {
    print(plan_text(profile, cluster, options, prepared, result));
  }
}

}  // namespace stagecraft::cli
