#include "cli/pipedream_text.h"

#include "base/json.h"
#include "base/table.h"
#include "base/text.h"
#include "partitioner/graph/chain.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <vector>

namespace stagecraft::cli {
namespace {

using pipedream::Options;
using pipedream::Result;
using pipedream::Stage;

/// By node, its place in a row along the edges.
std::vector<int> ranks_of(const LayerGraph& graph) {
  const std::vector<int> order = row_of(graph);
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

std::string table_text(const PreparedGraph& prepared, const Result& result) {
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
               Seconds{shares.compute}, Seconds{shares.all_reduce}, Seconds{shares.transfer},
               Seconds{stage.time}, format_bytes(Bytes{static_cast<std::int64_t>(stage.parameters)}),
               shares.bound()});
  }
  return table.text();
}

std::string times(double faster) { return fmt::format("{:.2f}x", faster); }

}  // namespace

std::string pipedream_text(const std::string& profile, const Cluster& cluster, const Options& options,
                           const PreparedGraph& prepared, const Result& result) {
  std::string out = fmt::format("{} on {}: {} on {}, by PipeDream's cost model\n\n",
                                std::filesystem::path(profile).filename().string(),
                                cluster.name.empty() ? plural(result.devices, "device") : cluster.name,
                                plural(static_cast<std::int64_t>(result.stages.size()), "stage"),
                                plural(result.devices - result.devices_left, "device"));
  out += table_text(prepared, result) + "\n";
  const auto line = [&](const char* key, const std::string& value) {
    out += fmt::format("  {:<13} {}\n", key, value);
  };
  const Seconds ideal{result.one_device / result.devices};
  line("bottleneck",
       fmt::format("{} per mini-batch, {} one device ({}); with all compute spread evenly {}",
                   format_duration(Seconds{result.bottleneck}), times(result.one_device / result.bottleneck),
                   format_duration(Seconds{result.one_device}), format_duration(ideal)));
  line("data parallel",
       fmt::format(
           "{} on {}, {} one device; the plan is {} that", format_duration(Seconds{result.data_parallel}),
           result.devices == 1 ? "the one device" : fmt::format("all {} devices", result.devices),
           times(result.one_device / result.data_parallel), times(result.data_parallel / result.bottleneck)));
  line("transfers", options.compression ? fmt::format("priced, compressed {} to 1", *options.compression)
                                        : "take no time (--activation-compression-ratio 1 prices them)");
  if (result.devices_left > 0) line("left over", plural(result.devices_left, "device"));
  line("searched", fmt::format("{} places to cut", prepared.states.states.size()));
  if (prepared.is_compressed()) {
    line("coarsened", fmt::format("{} nodes to {}: chains behind forks are one node each, too many places to "
                                  "cut otherwise",
                                  prepared.graph.nodes.size(), prepared.compressed.graph.nodes.size()));
  }
  return out;
}

Json pipedream_json(const std::string& profile, const Options& options, const PreparedGraph& prepared,
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

}  // namespace stagecraft::cli
