#include "stagecraft/cli/plan_graph.h"

#include "stagecraft/base/files.h"
#include "stagecraft/base/json.h"
#include "stagecraft/base/table.h"
#include "stagecraft/base/text.h"
#include "stagecraft/cli/explain_text.h"
#include "stagecraft/cli/output.h"
#include "stagecraft/partitioner/graph/graph_planner.h"
#include "stagecraft/partitioner/graph/graph_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>

namespace stagecraft::cli {
namespace {

/// The nodes of a stage, in the order in which the row has them.
std::vector<int> nodes_of(const GraphPlan& planned, const StagePlan& stage) {
  std::vector<int> nodes;
  for (int layer = stage.first_layer; layer < stage.last_layer; ++layer) {
    const std::vector<int>& more = planned.layers[static_cast<std::size_t>(layer)];
    nodes.insert(nodes.end(), more.begin(), more.end());
  }
  return nodes;
}

/// An id as its letters and the number at its end, where there is one.
std::pair<std::string, std::optional<int>> parts_of(const std::string& id) {
  const std::size_t letters = id.find_last_not_of("0123456789") + 1;
  std::string_view digits = std::string_view(id).substr(letters);
  if (digits.empty() || digits.front() == '0') return {id, std::nullopt};
  const auto number = take_number(digits);
  if (!number || !digits.empty()) return {id, std::nullopt};
  return {id.substr(0, letters), *number};
}

/// "node2-node17, node20": ids that count on are one run; a few runs, and how many there are more.
std::string ids_text(const LayerGraph& graph, const std::vector<int>& nodes) {
  std::map<std::string, std::vector<int>> numbers;
  std::vector<std::string> runs;
  for (const int node : nodes) {
    const auto [letters, number] = parts_of(graph.nodes[static_cast<std::size_t>(node)].id);
    if (number) {
      numbers[letters].push_back(*number);
    } else {
      runs.push_back(letters);
    }
  }
  for (auto& [letters, all] : numbers) {
    std::sort(all.begin(), all.end());
    for (std::size_t first = 0, last = 0; first < all.size(); first = last) {
      last = first + 1;
      while (last < all.size() && all[last] == all[last - 1] + 1) ++last;
      runs.push_back(last - first == 1
                         ? fmt::format("{}{}", letters, all[first])
                         : fmt::format("{}{}-{}{}", letters, all[first], letters, all[last - 1]));
    }
  }
  constexpr std::size_t kShown = 8;
  if (runs.size() <= kShown) return fmt::format("{}", fmt::join(runs, ", "));
  const std::size_t more = runs.size() - kShown;
  runs.resize(kShown);
  return fmt::format("{} and {} more runs (--json has all)", fmt::join(runs, ", "), more);
}

std::string nodes_table(const GraphPlan& planned, const LayerGraph& graph) {
  Table table({"stage", "nodes", "<which"});
  const Plan& plan = planned.result.best.plan;
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const std::vector<int> nodes = nodes_of(planned, plan.stages[s]);
    table.row({fmt::format("{}", s), fmt::format("{}", nodes.size()), ids_text(graph, nodes)});
  }
  return table.text();
}

std::string proof_text(const GraphProof& proof) {
  const char* what = proof.step ? "step" : "bottleneck";
  const std::string family = proof.whole_family ? "" : ", of equally wide stages";
  std::string cuts = fmt::format("all {} places to cut {} nodes were searched", proof.downsets, proof.nodes);
  if (proof.coarser()) {
    cuts = fmt::format(
        "{} nodes were taken together as {}, for they can be cut in too many places ({} are left)",
        proof.nodes, proof.blocks, proof.downsets);
  }
  std::string text = fmt::format("  graph     {}\n", cuts);
  if (proof.optimal()) {
    text += fmt::format("            no cuts of the graph make a shorter {}{}", what, family);
  } else {
    text += fmt::format("            {} of {}: at most {} above what any cuts of the graph need{} ({})", what,
                        format_duration(proof.value), format_percent(proof.gap()), family,
                        format_duration(proof.bound));
  }
  if (proof.row > proof.value) {
    text += fmt::format("; {} with the nodes in one row", format_duration(proof.row));
  }
  return text + "\n";
}

Json graph_json(const GraphPlan& planned, const LayerGraph& graph) {
  const GraphProof& proof = planned.proof;
  Json json;
  if (proof.nodes > 0) {
    json["nodes"] = proof.nodes;
    json["blocks"] = proof.blocks;
    json["downsets"] = proof.downsets;
    json["coarser"] = proof.coarser();
    json["objective"] = proof.step ? "step" : "bottleneck";
    json["value_ms"] = proof.value.value * 1e3;
    json["bound_ms"] = proof.bound.value * 1e3;
    json["gap"] = proof.gap();
    json["whole_family"] = proof.whole_family;
    if (proof.row > Seconds{}) json["row_ms"] = proof.row.value * 1e3;
  }
  json["stages"] = Json::array();
  for (const StagePlan& stage : planned.result.best.plan.stages) {
    Json ids = Json::array();
    for (const int node : nodes_of(planned, stage)) {
      ids.push_back(graph.nodes[static_cast<std::size_t>(node)].id);
    }
    json["stages"].push_back(std::move(ids));
  }
  return json;
}

}  // namespace

void plan_graph_from(const std::string& path, const Cluster& cluster, const PlanRequest& request,
                     const PlanOutput& output) {
  const LayerGraph graph = read_graph(path);
  GraphPlan planned = plan_graph(graph, std::filesystem::path(path).filename().string(), cluster, request);
  finish_plan(planned.result, output);
  std::optional<Explanation> explained;
  if (output.explain) {
    explained = explain(planned.profile, cluster, planned.result, request, output.progress);
  }
  if (output.as_json) {
    Json json = plan_json(planned.result);
    if (explained) json["explanation"] = json::write(*explained);
    json["graph"] = graph_json(planned, graph);
    return print_json(json);
  }
  // The proof of the row says nothing of other cuts; that of the graph does.
  if (planned.proof.nodes > 0) planned.result.proof.reset();
  std::string text = plan_text(planned.result, planned.profile, cluster);
  text += "\n" + nodes_table(planned, graph) + "\n";
  if (planned.proof.nodes > 0) text += proof_text(planned.proof);
  print(text);
  if (explained) {
    const Plan& plan = planned.result.best.plan;
    print(explain_text(*explained, plan, planned.profile.at(plan.micro_batch_size), cluster));
  }
  print(where_written(output));
}

}  // namespace stagecraft::cli
