// `stagecraft optimize-pipedream`: what PipeDream's optimizer plans under its own cost model
// (partitioner/pipedream/). Its four options have the names that they have there.

#include "cli/commands.h"
#include "cli/number_ranges.h"
#include "cli/output.h"
#include "cli/pipedream_graph.h"
#include "cli/pipedream_text.h"
#include "cli/plan_profile.h"

#include <CLI/CLI.hpp>

#include <cstdint>
#include <memory>
#include <optional>

namespace stagecraft::cli {
namespace {

struct PipedreamOptions {
  std::string profile;
  std::string cluster;
  std::optional<std::int64_t> micro_batch_size;
  bool straight = false;
  bool fewer_machines = false;
  bool memory = false;
  std::optional<double> compression;
  bool json = false;
};

pipedream::Options optimizer_options(const PipedreamOptions& asked, const Cluster& cluster) {
  pipedream::Options options;
  for (const NetworkLevel& level : cluster.levels) {
    options.levels.push_back({level.count, level.link.bytes_per_second});
  }
  options.straight = asked.straight;
  options.fewer_machines = asked.fewer_machines;
  options.compression = asked.compression;
  if (asked.memory) {
    if (!cluster.memory) {
      throw InputError({asked.cluster, "/memory_bytes"}, "is not there; --use-memory-constraint needs it");
    }
    options.memory = static_cast<double>(cluster.usable_memory()->value);
  }
  if (!cluster.speed.empty()) note("PipeDream's cost model knows no speeds: all devices count as equal");
  return options;
}

void run(const PipedreamOptions& asked) {
  const PreparedGraph prepared = prepare(read_layer_graph(asked.profile, asked.micro_batch_size));
  const Cluster cluster = read_cluster(asked.cluster);
  const pipedream::Options options = optimizer_options(asked, cluster);
  const pipedream::Result result = pipedream::optimize(prepared.states, options);
  if (asked.json) {
    print_json(pipedream_json(asked.profile, options, prepared, result));
  } else {
    print(pipedream_text(asked.profile, cluster, options, prepared, result));
  }
}

}  // namespace

void add_optimize_pipedream(CLI::App& app) {
  const auto options = std::make_shared<PipedreamOptions>();
  CLI::App* verb =
      app.add_subcommand("optimize-pipedream", "plan as PipeDream's optimizer does, under its cost model");
  verb->add_option("--profile", options->profile,
                   "profile.json, or a graph of PipeDream's profiler (its name ends in .txt)")
      ->type_name("FILE")
      ->required()
      ->group("Inputs");
  verb->add_option("--cluster", options->cluster, "cluster.json: devices, links, memory")
      ->type_name("FILE")
      ->required()
      ->group("Inputs");
  verb->add_option("--micro-batch-size", options->micro_batch_size,
                   "samples per mini-batch, a size in profile.json (default: the only one)")
      ->type_name("N")
      ->check(from_to(std::int64_t{1}, std::int64_t{1} << 40))
      ->group("Inputs");
  constexpr const char* kOptimizer = "PipeDream's optimizer";
  verb->add_flag("--straight-pipeline", options->straight,
                 "one device per stage (default: stages may have replicas)")
      ->group(kOptimizer);
  verb->add_flag("--use-fewer-machines", options->fewer_machines,
                 "devices may be left over (default: all are used)")
      ->group(kOptimizer);
  verb->add_flag("--use-memory-constraint", options->memory,
                 "within the cluster's memory_bytes, as far as PipeDream counts memory (default: no limit)")
      ->group(kOptimizer);
  verb->add_option("--activation-compression-ratio", options->compression,
                   "price transfers, their bytes divided by R (default: transfers take no time)")
      ->type_name("R")
      ->check(from_to(1e-6, 1e6))
      ->group(kOptimizer);
  verb->add_flag("--json", options->json, "one JSON document: stages with their nodes, replicas and times")
      ->group("Output");
  verb->footer(
      "The model knows stages and their replicas alone: no schedule, no micro-batches, no plan.json.");
  verb->callback([options] { run(*options); });
}

}  // namespace stagecraft::cli
