// Profiles whose figures are zero, tiny or huge: every command answers with figures, or with a reason.

#include "test/support/catch.h"
#include "test/support/command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <regex>

namespace stagecraft {
namespace {

using test::CommandResult;

struct Odd {
  const char* name;
  double first_ms, inner_ms, last_ms;  // of each part of a layer
  double bytes;                        // of parameters and outputs
  int layers;
};
constexpr Odd kOdd[] = {{"no time", 0, 0, 0, 1000, 6},          {"no time, no bytes", 0, 0, 0, 0, 6},
                        {"time in the last", 0, 0, 5, 1000, 6}, {"time in the first", 5, 0, 0, 0, 6},
                        {"one layer", 0, 0, 0, 1000, 1},        {"tiny", 1e-9, 1e-9, 1e-9, 1, 6},
                        {"huge", 1e10, 1e10, 1e10, 1e12, 6}};

std::string profile_of(const Odd& odd) {
  std::string layers;
  for (int l = 0; l < odd.layers; ++l) {
    const double ms = l == odd.layers - 1 ? odd.last_ms : l == 0 ? odd.first_ms : odd.inner_ms;
    layers += fmt::format(
        R"({}{{"name": "l{}", "forward": {{"median_ms": {}}}, "backward_input": {{"median_ms": {}}}, "backward_weight": {{"median_ms": {}}}, "parameter_bytes": {:.0f}, "output_bytes": {:.0f}}})",
        l == 0 ? "" : ", ", l, ms, ms, ms, odd.bytes, l == odd.layers - 1 ? 0 : odd.bytes);
  }
  return fmt::format(
      R"({{"model": "m", "measurements": [{{"micro_batch": 1, "input_bytes": 10, "targets_bytes": 8, "layers": [{}]}}]}})",
      layers);
}

/// "" or what is wrong with an answer.
std::string wrong(const CommandResult& result) {
  static const std::regex no_number(R"((^|[^A-Za-z_])[-+]?(nan|inf)([^A-Za-z_]|$))", std::regex::icase);
  if (result.code != 0 && result.code != 2 && result.code != 3)
    return fmt::format("exit code {}", result.code);
  if (std::regex_search(result.out + result.err, no_number)) return "a figure that is no number";
  if (result.code != 0 && !std::regex_search(result.err, std::regex(R"(^stagecraft: .*\S)")))
    return "no reason";
  if (std::regex_search(result.err, std::regex(R"((fits|from):\s*$)"))) return "an empty reason";
  return "";
}

}  // namespace

TEST_CASE("commands answer odd profiles with figures or a reason", "[odd_figures]") {
  const test::ScratchFolder folder;
  const std::string plan = folder.path("plan.json");
  for (const Odd& odd : kOdd) {
    for (const char* memory : {"", R"(, "memory_bytes": 1048576)"}) {
      const std::string profile = folder.write("profile.json", profile_of(odd));
      const std::string cluster = folder.write(
          "cluster.json",
          fmt::format(
              R"({{"levels": [{{"count": 3, "link": {{"latency_ms": 0.01, "bytes_per_second": 1e9}}}}]{}}})",
              memory));
      const std::vector<std::vector<std::string>> commands{
          {"plan", "--schedule", "zb_h1", "-o", plan},
          {"plan", "--schedule", "pipedream", "--micro-batches", "3"},
          {"plan", "--no-replicate", "--json"},
          {"explain"},
          {"explain", "--no-replicate"},
          {"explain", "--json"},
          {"compare", "--schedules", "all,pipedream", "--micro-batches", "2"},
          {"compare", "--schedules", "1f1b", "--micro-batches", "4", "--pareto"}};
      const auto check = [&](const std::vector<std::string>& command) {
        const CommandResult result = test::stagecraft(command);
        INFO(odd.name << memory << ": " << fmt::format("{}", fmt::join(command, " ")));
        INFO(result.out << result.err);
        CHECK(wrong(result) == "");
        return result.code;
      };
      for (std::vector<std::string> command : commands) {
        command.insert(command.end(), {"--profile", profile, "--cluster", cluster});
        if (check(command) != 0 || command[3] != "-o") continue;
        check({"simulate", plan});
        check({"simulate", plan, "--json"});
        check({"check", plan});
        check({"compare", plan, "--schedules", "all"});
      }
    }
  }
}

}  // namespace stagecraft
