// graph.txt profiles on the command line: by PipeDream's cost model, and by the chain's planner.

#include "schedules/base/json.h"
#include "test/support/catch.h"
#include "test/support/command.h"

using stagecraft::Json;
using stagecraft::test::CommandResult;
using stagecraft::test::says;
using stagecraft::test::ScratchFolder;

namespace {

const std::string kVgg = STAGECRAFT_TEST_DATA "/pipedream/vgg16.graph.txt";
const std::string kCluster = R"({"name": "4x4", "levels": [
    {"count": 4, "link": {"latency_ms": 0.01, "bytes_per_second": 12e9}},
    {"count": 4, "link": {"latency_ms": 0.03, "bytes_per_second": 1.25e9}}]})";

CommandResult plan(const std::string& profile, const std::vector<std::string>& more,
                   const std::string& cluster = kCluster) {
  const ScratchFolder folder;
  std::vector<std::string> arguments{"plan", "--profile", profile, "--cluster",
                                     folder.write("c.json", cluster)};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return stagecraft::test::stagecraft(arguments);
}

}  // namespace

TEST_CASE("plan --cost pipedream prints PipeDream's plan and what it is worth", "[plan_pipedream]") {
  const CommandResult result = plan(kVgg, {"--cost", "pipedream", "--activation-compression-ratio", "1"});
  INFO(result.err);
  REQUIRE(result.code == 0);
  CHECK(result.err.empty());
  CHECK(says(result.out, "vgg16.graph.txt on 4x4: 4 stages on 16 devices, by PipeDream's cost model"));
  CHECK(says(result.out, "node2 Conv2d .. node32 MaxPool2d  12 = 4 x 3"));
  CHECK(says(result.out, "bottleneck    66.89 ms a mini-batch, 10.05x one device (672.54 ms)"));
  CHECK(says(result.out,
             "data parallel 133.70 ms on all 16 devices, 5.03x one device; the plan is 2.00x that"));
  CHECK(says(result.out, "searched      40 places to cut"));
}

TEST_CASE("plan --cost pipedream --json has every node in a stage", "[plan_pipedream]") {
  const CommandResult result = plan(kVgg, {"--cost", "pipedream", "--json"});
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

TEST_CASE("plan --cost pipedream takes profile.json too, and graphs with many branches", "[plan_pipedream]") {
  const CommandResult chain =
      plan(STAGECRAFT_TEST_DATA "/profiles/gpt_10_layers.json",
           {"--cost", "pipedream", "--micro-batch-size", "8", "--use-fewer-machines"});
  INFO(chain.err);
  CHECK(chain.code == 0);
  CHECK(says(chain.out, "11 places to cut"));
  const CommandResult inception =
      plan(STAGECRAFT_TEST_DATA "/pipedream/inception_v3.graph.txt", {"--cost", "pipedream"});
  CHECK(inception.code == 0);
  CHECK(says(inception.out, "coarsened     326 nodes to 92"));
}

TEST_CASE("a graph.txt is planned over all its cuts, and every node is in a stage", "[plan_pipedream]") {
  const std::string gnmt = STAGECRAFT_TEST_DATA "/pipedream/gnmt.graph.txt";
  const CommandResult text = plan(gnmt, {"--widths", "1,1,1", "--stages", "3", "--micro-batch-size", "64"});
  INFO(text.err);
  REQUIRE(text.code == 0);
  CHECK(says(text.out, "graph     all 562 places to cut 37 nodes were searched"));
  CHECK(says(text.out, "node4-node"));
  const CommandResult result =
      plan(gnmt, {"--widths", "1,1,1", "--stages", "3", "--micro-batch-size", "64", "--json"});
  REQUIRE(result.code == 0);
  const Json graph = Json::parse(result.out)["graph"];
  CHECK(graph["downsets"] == 562);
  CHECK(graph["coarser"] == false);
  CHECK(graph["bound_ms"].get<double>() <= graph["value_ms"].get<double>());
  CHECK(graph["value_ms"].get<double>() <= graph["row_ms"].get<double>());
  REQUIRE(graph["stages"].size() == 3);
  std::size_t nodes = 0;
  for (const Json& stage : graph["stages"]) nodes += stage.size();
  CHECK(nodes == 37);
}

TEST_CASE("a graph.txt is planned for any schedule, and tells what it does not say", "[plan_pipedream]") {
  const CommandResult result =
      plan(kVgg, {"--stages", "2", "--schedule", "1f1b", "--micro-batch-size", "128", "--json"});
  INFO(result.err);
  REQUIRE(result.code == 0);
  CHECK(result.err.empty());
  const Json json = Json::parse(result.out);
  CHECK(json["plan"]["micro_batch_size"] == 128);
  CHECK(json["plan"]["stages"].back()["last_layer"] == 40);
  const CommandResult silent = plan(kVgg, {"--stages", "2"});
  CHECK(says(silent.err, "does not say how many samples its mini-batch has"));
}

TEST_CASE("what PipeDream's model has no word for is refused", "[plan_pipedream]") {
  const auto refused = [](const std::string& profile, const std::vector<std::string>& more, int code,
                          const std::string& message, const std::string& cluster = kCluster) {
    const CommandResult result = plan(profile, more, cluster);
    INFO(result.err);
    CHECK(result.code == code);
    CHECK(result.out.empty());
    CHECK(says(result.err, message));
  };
  refused(kVgg, {"--cost", "pipedream", "--schedule", "1f1b"}, 2,
          "--schedule: means nothing with --cost pipedream");
  refused(kVgg, {"--cost", "pipedream", "-o", "plan.json"}, 2, "--json prints its plan");
  refused(kVgg, {"--straight-pipeline"}, 2, "--straight-pipeline requires --cost");
  refused(kVgg, {"--cost", "pipedreams"}, 2, "--cost");
  refused(kVgg, {"--cost", "pipedream", "--activation-compression-ratio", "0"}, 2,
          "--activation-compression-ratio");
  refused(kVgg, {"--cost", "pipedream", "--use-memory-constraint"}, 2,
          "/memory_bytes: is not there; --use-memory-constraint needs it");
  refused(kVgg, {"run.json", "--cost", "pipedream"}, 2, "takes no run config");
  refused("/nonexistent.txt", {"--cost", "pipedream"}, 2, "/nonexistent.txt: cannot be opened");
  refused(STAGECRAFT_TEST_DATA "/pipedream/alexnet.graph.txt", {"--cost", "pipedream", "--straight-pipeline"},
          3, "a straight pipeline uses every device", R"({"levels": [
            {"count": 64, "link": {"latency_ms": 0.01, "bytes_per_second": 12e9}}]})");
  const ScratchFolder folder;
  refused(folder.write("bad.txt", "node1 -- x\n"), {"--cost", "pipedream"}, 2, "bad.txt: line 1: expected");
}
