#include "test/support/command.h"

#include "test/support/catch.h"

#include <cstdlib>
#include <regex>
#include <string>
#include <vector>

using stagecraft::test::CommandResult;

namespace {

CommandResult run(const std::vector<std::string>& arguments) {
  return stagecraft::test::stagecraft(arguments);
}

using stagecraft::test::says;

}  // namespace

TEST_CASE("-h is --help", "[command]") { CHECK(run({"-h"}).out == run({"--help"}).out); }

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

TEST_CASE("every option that takes a number says what it expects, in our words", "[command]") {
  const auto found = [](const std::string& text, const char* pattern) {
    const std::regex regex(pattern);
    std::vector<std::string> all;
    for (std::sregex_iterator at(text.begin(), text.end(), regex), end; at != end; ++at)
      all.push_back((*at)[1]);
    return all;
  };
  int options = 0;
  for (const std::string& verb : found(run({"--help"}).out, "\n  ([a-z][a-z-]+) ")) {
    for (const std::string& option :
         found(run({verb, "--help"}).out, "\n  (--[a-z-]+) (?:N|N,N,...|MS|SECONDS|SHARE)(?= |\n)")) {
      ++options;
      for (const char* value : {"x", "nan", "1e999", "-99999999999999999999"}) {
        const CommandResult refused = run({verb, option, value});
        INFO(verb << " " << option << " " << value << ": " << refused.err);
        CHECK(refused.code == 2);
        CHECK(says(refused.err, option + ": "));
        CHECK(says(refused.err, ": expected "));
        CHECK(says(refused.err, value));
        CHECK_FALSE(says(refused.err, "not in range"));
      }
    }
  }
  CHECK(options > 20);
}

TEST_CASE("several launched processes do no work N times that is one process's", "[command]") {
  struct Variables {
    explicit Variables(const char* rank) {
      setenv("WORLD_SIZE", "2", 1);
      setenv("RANK", rank, 1);
    }
    ~Variables() {
      unsetenv("WORLD_SIZE");
      unsetenv("RANK");
    }
    Variables(const Variables&) = delete;
    Variables& operator=(const Variables&) = delete;
  };
  const std::vector<std::vector<std::string>> commands{{"plan", "--profile", "p.json", "--cluster", "c.json"},
                                                       {"check", "plan.json"},
                                                       {"simulate", "plan.json"},
                                                       {"report", "run"},
                                                       {"schema", "plan"}};
  for (const std::vector<std::string>& command : commands) {
    CAPTURE(command);
    {
      const Variables first("0");
      const CommandResult refused = run(command);
      CHECK(refused.code == 2);
      CHECK(says(refused.err,
                 "`" + command.front() + "` is the work of one process, but 2 were launched (WORLD_SIZE=2)"));
      CHECK(run({command.front(), "--help"}).code == 0);
    }
    const Variables second("1");
    const CommandResult silent = run(command);
    CHECK(silent.code == 2);
    CHECK(silent.out + silent.err == "");
  }
}
