#include "test/support/command.h"

#include "test/support/catch.h"

using stagecraft::test::CommandResult;

namespace {

CommandResult run(const std::vector<std::string>& arguments) {
  return stagecraft::test::stagecraft(arguments);
}

using stagecraft::test::says;

}  // namespace

TEST_CASE("help and version go to stdout and are no error", "[command]") {
  for (const char* flag : {"--help", "-h"}) {
    const CommandResult help = run({flag});
    CHECK(help.code == 0);
    CHECK(help.err.empty());
    CHECK(says(help.out, "check"));
    CHECK(says(help.out, "simulate"));
    CHECK(says(help.out, "Exit codes"));
  }
  CHECK(run({"--version"}).out.find("stagecraft ") == 0);
  const CommandResult verb = run({"check", "--help"});
  CHECK(verb.code == 0);
  CHECK(says(verb.out, "--slots"));
  CHECK_FALSE(says(verb.out, "Exit codes"));  // said once, at the top
}

TEST_CASE("a word that is no verb is told with the nearest", "[command]") {
  const CommandResult result = run({"simulat", "plan.json"});
  CHECK(result.code == 2);
  CHECK(result.out.empty());
  CHECK(says(result.err, "stagecraft: \"simulat\" is not one of"));
  CHECK(says(result.err, "did you mean \"simulate\"?"));
}

TEST_CASE("bad usage exits 2 and says where the help is", "[command]") {
  const CommandResult none = run({});
  CHECK(none.code == 2);
  CHECK(says(none.err, "stagecraft --help"));
  const CommandResult missing = run({"check"});
  CHECK(missing.code == 2);
  CHECK(says(missing.err, "stagecraft: check: FILE is required"));
  CHECK(says(missing.err, "See `stagecraft check --help`."));
  const CommandResult unknown = run({"simulate", "x.json", "--sgv=a.svg"});
  CHECK(unknown.code == 2);
  CHECK(says(unknown.err, "unknown option --sgv; did you mean \"--svg\"?"));
  const CommandResult extra = run({"check", "a.json", "b.json"});
  CHECK(extra.code == 2);
  CHECK(says(extra.err, "\"b.json\" was not expected here"));
  for (const CommandResult& result : {none, missing, unknown, extra}) CHECK(result.out.empty());
}

TEST_CASE("names from files are shown, and do not reach the terminal as commands", "[command]") {
  const stagecraft::test::ScratchFolder folder;
  const std::string graph = folder.write(
      "g.txt",
      "n\xff -- d -- forward_compute_time=1, backward_compute_time=1, activation_size=1, parameter_size=1\n");
  const std::string cluster =
      R"({"levels": [{"count": 1, "link": {"latency_ms": 0.01, "bytes_per_second": 1e9}}])";
  const std::string good = folder.write("cluster.json", cluster + "}");
  const std::string bad = folder.write("bad.json", cluster + R"(, "\u001b]0;owned\u0007\u009b2J": 1})");
  const CommandResult refused = run({"plan", "--profile", graph, "--cluster", bad});
  CHECK(refused.code == 2);
  CHECK(says(refused.err, "\\u001b]0;owned\\u0007\\u009b2J"));
  CHECK(refused.err.find_first_of("\x1b\x07\xc2") == std::string::npos);
  const CommandResult json = run({"plan", "--profile", graph, "--cluster", good, "--json"});
  INFO(json.err);
  CHECK(json.code == 0);
  CHECK(says(json.out, "\xef\xbf\xbd"));  // U+FFFD, for a byte that is not UTF-8
}
