// graph.txt profiles on the command line: by PipeDream's cost model, and by the chain's planner.

#include "base/json.h"
#include "test/support/catch.h"
#include "test/support/command.h"

#include <set>
#include <string>

using stagecraft::Json;
using stagecraft::test::CommandResult;
using stagecraft::test::says;
using stagecraft::test::ScratchFolder;

namespace {

const std::string kVgg = STAGECRAFT_TEST_DATA "/pipedream/vgg16.graph.txt";
const std::string kFourByFour = R"({"name": "4x4", "levels": [
    {"count": 4, "link": {"latency_ms": 0.01, "bytes_per_second": 12e9}},
    {"count": 4, "link": {"latency_ms": 0.03, "bytes_per_second": 1.25e9}}]})";

CommandResult plan_graph(const std::string& verb, const std::string& profile,
                         const std::vector<std::string>& more) {
  const ScratchFolder folder;
  std::vector<std::string> arguments{verb, "--profile", profile, "--cluster",
                                     folder.write("c.json", kFourByFour)};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return stagecraft::test::stagecraft(arguments);
}

}  // namespace

TEST_CASE("optimize-pipedream --json has every node in a stage", "[plan_pipedream]") {
  const CommandResult result = plan_graph("optimize-pipedream", kVgg, {"--json"});
  REQUIRE(result.code == 0);
  const Json json = Json::parse(result.out);
  CHECK(json["bottleneck_ms"].get<double>() == Approx(44.00841546666667));
  std::size_t nodes = 0;
  int devices = 0;
  for (const Json& stage : json["stages"]) {
    nodes += stage["nodes"].size();
    devices += stage["devices"].get<int>();
  }
  CHECK(nodes == 40);
  CHECK(devices == 16);
}

TEST_CASE("a graph.txt is planned along a row of its nodes", "[plan_pipedream]") {
  const std::string gnmt = STAGECRAFT_TEST_DATA "/pipedream/gnmt.graph.txt";
  const CommandResult result =
      plan_graph("plan", gnmt, {"--widths", "1,1,1", "--stages", "3", "--micro-batch-size", "64", "--json"});
  REQUIRE(result.code == 0);
  CHECK(result.err.empty());
  const Json json = Json::parse(result.out);
  CHECK(json["plan"]["micro_batch_size"] == 64);
  REQUIRE(json["graph"]["stages"].size() == 3);
  std::set<std::string> nodes;
  for (const Json stages = json["graph"]["stages"]; const Json& stage : stages) {
    for (const Json& node : stage) nodes.insert(node.get<std::string>());
  }
  CHECK(nodes.size() == 37);
  CHECK(nodes.contains("node5"));
}
