// graph.txt: what is read, and what is said about what cannot be.

#include "partitioner/graph/graph_text.h"

#include "base/error.h"
#include "test/support/catch.h"

#include <fmt/format.h>

#include <fstream>
#include <new>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

namespace stagecraft {
namespace {

std::string node(const std::string& id, const std::string& costs) {
  return fmt::format("{} -- Linear(8, 8) -- {}\n", id, costs);
}
const std::string kCosts =
    "forward_compute_time=1.500, backward_compute_time=2.500, activation_size=32.000, parameter_size=256.000";

std::string with(const std::string& from, const std::string& to) {
  std::string text = kCosts;
  return text.replace(text.find(from), from.size(), to);
}

std::string error_of(const std::string& text) {
  try {
    (void)graph_from_text(text, "x.graph.txt");
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

void fails(const std::string& text, const std::string& message) {
  INFO(text.substr(0, 1000));
  const std::string error = error_of(text);
  INFO(error);
  CHECK(error.find(message) != std::string::npos);
}

}  // namespace

#ifndef __SANITIZE_ADDRESS__  // its own memory is in the way of a limit
TEST_CASE("a file of nothing but separators takes little more memory than its size", "[graph_text]") {
  const auto repeated = [](const std::string& piece) {
    std::string text;
    while (text.size() + piece.size() <= kMostGraphBytes) text += piece;
    return text;
  };
  const auto node_with = [&](const std::string& sizes) {
    return "a -- d -- forward_compute_time=1, backward_compute_time=1, activation_size=[" +
           sizes.substr(0, sizes.size() - 300) + "], parameter_size=1";
  };
  for (const std::string& text : {repeated("\n"), repeated("\tx\n"), "a" + repeated(" -- ").substr(100),
                                  "a -- d -- " + repeated(", ").substr(100), node_with(repeated("1; "))}) {
    const pid_t child = ::fork();
    if (child == 0) {
      std::size_t pages = 0;
      std::ifstream("/proc/self/statm") >> pages;
      const rlim_t most = pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)) + 2 * kMostGraphBytes;
      const rlimit limit{most, most};
      int result = ::setrlimit(RLIMIT_AS, &limit) == 0 ? 1 : 2;
      try {
        (void)graph_from_text(text, "x");
      } catch (const InputError&) {
        result = 0;
      } catch (const std::bad_alloc&) {
      }
      ::_exit(result);
    }
    int status = -1;
    REQUIRE(::waitpid(child, &status, 0) == child);
    INFO(text.substr(0, 100));
    CHECK(status == 0);
  }
}
#endif

TEST_CASE("nodes and edges are read with their costs", "[graph_text]") {
  const LayerGraph graph = graph_from_text(
      "\tb -- c\n" + node("a", kCosts) + "\r\n" + "b -- Conv2d(1, 2, kernel_size=(3, 3)) -- " +
          with("32.000", "[32.0; 8; 0.6]") + " -- stage_id=3\r\n" + node("c", kCosts) + "\ta -- b\n\n",
      "x");
  REQUIRE(graph.nodes.size() == 3);
  CHECK(graph.nodes[0].id == "a");
  CHECK(graph.nodes[0].forward.value == Approx(0.0015));
  CHECK(graph.nodes[0].backward.value == Approx(0.0025));
  CHECK(graph.nodes[0].activation == Bytes{32});
  CHECK(graph.nodes[0].parameters == Bytes{256});
  CHECK(graph.nodes[1].activation == Bytes{41});  // 40.6
  CHECK(graph.nodes[1].description == "Conv2d(1, 2, kernel_size=(3, 3))");
  CHECK(graph.nodes[1].kind() == "Conv2d");
  REQUIRE(graph.edges.size() == 2);
  CHECK(graph.successors()[0] == std::vector<int>{1});
  CHECK(graph.predecessors()[2] == std::vector<int>{1});
}

TEST_CASE("PipeDream's profiles are read whole", "[graph_text]") {
  const LayerGraph graph = read_graph(STAGECRAFT_TEST_DATA "/pipedream/gnmt.graph.txt");
  CHECK(graph.nodes.size() == 48);
  CHECK(graph.edges.size() == 58);
  CHECK(graph.nodes[5].kind() == "LSTM");
  CHECK(graph.nodes[5].activation == Bytes{6291456 + 2 * 131072});
}

TEST_CASE("what is no graph.txt is refused with the line", "[graph_text]") {
  const std::string a = node("a", kCosts);
  const std::string ab = a + node("b", kCosts);
  fails("", "x.graph.txt: no nodes; expected lines like");
  fails("\n \n", "no nodes");
  fails("{\"measurements\": []}", "x.graph.txt: line 1: expected \"ID -- DESCRIPTION --");
  fails(a + "b -- Linear\n", "line 2: expected \"ID -- DESCRIPTION");
  fails(" -- x -- " + kCosts, "line 1: begins with a space");
  fails("-- x -- " + kCosts, "line 1: expected \"ID");
  fails(a + a, "line 2: the id \"a\" stands in line 1 already");
  fails(node("a", with("1.500", "-1.5")),
        "forward_compute_time: expected a number between 0 and 1e+12, found \"-1.5\"");
  fails(node("a", with("2.500", "nan")), "backward_compute_time: expected a number");
  fails(node("a", with("2.500", "inf")), "backward_compute_time: expected a number");
  fails(node("a", with("2.500", "2.5ms")), "found \"2.5ms\"");
  fails(node("a", with("2.500", "")), "backward_compute_time: expected a number");
  fails(node("a", with("32.000", "1e13")), "activation_size: expected a number between 0 and 1e+12");
  fails(node("a", with("32.000", "[1e12; 1e12]")), "the sizes add up to 2e+12");
  fails(node("a", with("32.000", "[1; 2")), "activation_size: expected a number");
  fails(node("a", with("32.000", "[]")), "activation_size: expected a number");
  fails(node("a", with("256.000", "-0.5")), "parameter_size: expected a number");
  fails(node("a", with("forward_compute", "forward")),
        "expected \"forward_compute_time=\", found \"forward_time=");
  fails(node("a", with(", parameter_size=256.000", "")), "expected four values, forward_compute_time, ");
  fails("a -- x -- " + kCosts + " -- stage=1\n", "expected \"stage_id=\" or nothing");
  fails(a + "  a -- b\n", "line 2: begins with a space: an edge begins with a tab");
  fails(ab + "\ta -- bb\n", "line 3: there is no node \"bb\"");
  fails(node("node1", kCosts) + node("node22", kCosts) + "\tnode1 -- node23\n", "did you mean \"node22\"?");
  fails(ab + "\ta\n", "expected \"ID -- ID\" after the tab, found \"a\"");
  fails(ab + "\ta -- b\n\ta -- b\n", "line 4: the edge \"a -- b\" stands twice");
  fails(std::string(kMostGraphBytes + 1, '\n'), "at most 67108864 are read");
}

TEST_CASE("edges that go in a circle are shown", "[graph_text]") {
  const std::string abc = node("a", kCosts) + node("b", kCosts) + node("c", kCosts) + node("d", kCosts);
  fails(abc + "\ta -- a\n", "line 5: the edges go in a circle: a -> a");
  fails(abc + "\td -- a\n\ta -- b\n\tb -- c\n\tc -- b\n", "the edges go in a circle: b -> c -> b");
  std::string wheel;
  std::string edges;
  for (int n = 0; n < 50; ++n) {
    wheel += node(fmt::format("n{}", n), kCosts);
    edges += fmt::format("\tn{} -- n{}\n", n, (n + 1) % 50);
  }
  fails(wheel + edges, "more) -> n");
}

TEST_CASE("a file that is absurd is refused before it is taken in", "[graph_text]") {
  std::string text;
  for (std::size_t n = 0; n <= kMostGraphNodes; ++n) text += node(fmt::format("n{}", n), kCosts);
  fails(text, fmt::format("line {}: more than {} nodes", kMostGraphNodes + 1, kMostGraphNodes));
  CHECK_THROWS_AS(read_graph("/nonexistent"), InputError);
  CHECK_THROWS_AS(read_graph("/"), InputError);
}

}  // namespace stagecraft
