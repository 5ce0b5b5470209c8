// Files that verbs write where the command line says: each is named in the text, none in a JSON document.

#include "test/cli/sample_plan.h"
#include "test/support/catch.h"
#include "test/support/command.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

namespace stagecraft::test {
namespace {

constexpr const char* kSampleRun = STAGECRAFT_TEST_DATA "/run";

std::vector<std::string> planning(const std::string& verb) {
  return {verb,
          "--profile",
          STAGECRAFT_TEST_DATA "/profiles/gpt_10_layers.json",
          "--cluster",
          STAGECRAFT_TEST_DATA "/../../configs/clusters/laptop.json",
          "--micro-batch-size",
          "8",
          "--micro-batches",
          "4"};
}

std::vector<std::string> with(std::vector<std::string> words, const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

/// Options of a verb that name a file to write, by what its help says of them.
std::set<std::string> writing_options(const std::string& verb) {
  static const std::regex kOption(R"(^  (?:-\w,)?(--[a-z-]+) FILE\S* +(.*)$)");
  std::set<std::string> found;
  std::istringstream help(stagecraft({verb, "--help"}).out);
  for (std::string line; std::getline(help, line);) {
    std::smatch parts;
    if (!std::regex_match(line, parts, kOption)) continue;
    const std::string about = parts[2];
    for (const char* word : {"goes", "write", "a picture"}) {
      if (says(about, word)) found.insert(parts[1]);
    }
  }
  return found;
}

}  // namespace

TEST_CASE("every file that a verb was asked to write is there, and named in its text alone",
          "[output_files]") {
  const ScratchFolder folder;
  const std::vector<std::string> replan{"replan",    kSampleRun,
                                        "--profile", std::string(kSampleRun) + "/profile.json",
                                        "--cluster", std::string(kSampleRun) + "/cluster.json"};
  const std::string crossed = folder.write("crossed.schedule", stagecraft({"convert", kPlan}).out);
  // The verbs that this build has; those of the engine are tried elsewhere.
  const std::map<std::string, std::vector<std::pair<std::string, std::vector<std::string>>>> tried{
      {"plan", {{"--output", planning("plan")}}},
      {"compare",
       {{"--output", with(planning("compare"), {"--schedules", "1f1b"})},
        {"--svg", with(planning("compare"), {"--schedules", "1f1b", "--pareto"})},
        {"--svg", {"compare", kPlan, "--schedules", "1f1b,zb_h1"}}}},
      {"explain", {{"--output", planning("explain")}}},
      {"replan", {{"--output", replan}}},
      {"optimize-pipedream", {}},
      {"check", {{"--repair", {"check", crossed}}}},
      {"simulate", {{"--svg", {"simulate", kPlan}}, {"--trace", {"simulate", kPlan}}}},
      {"watch", {}},
      {"report", {{"--svg", {"report", kSampleRun}}, {"--html", {"report", kSampleRun}}}},
      {"convert", {{"--output", {"convert", kPlan}}}},
      {"schema", {}},
      {"completion", {{"--output", {"completion", "bash"}}}}};
  for (const auto& [verb, cases] : tried) {
    INFO(verb);
    std::set<std::string> options;
    for (const auto& [option, words] : cases) {
      options.insert(option);
      const bool has_json = says(stagecraft({verb, "--help"}).out, "--json");
      for (const bool json : {false, true}) {
        if (json && !has_json) continue;
        const std::string file = folder.path("written");
        std::filesystem::remove(file);
        const CommandResult result =
            stagecraft(with(with(words, {option, file}),
                            json ? std::vector<std::string>{"--json"} : std::vector<std::string>{}));
        CAPTURE(words, option, json, result.err);
        CHECK(result.code == 0);
        CHECK(std::filesystem::file_size(file) > 0);
        CHECK(says(result.out, file) == !json);
        const std::string foreign = folder.path("written.PNG");
        const CommandResult refused = stagecraft(with(words, {option, foreign}));
        CHECK(refused.code == 2);
        CHECK(says(refused.err, "a name in .png is for another format than is written: expected "));
        CHECK_FALSE(std::filesystem::exists(foreign));
      }
    }
    CHECK(writing_options(verb) == options);
  }
}

TEST_CASE("a refusal is the same with --json as without, in code and words", "[output_files]") {
  const ScratchFolder folder;
  const std::string none = folder.path("none"), broken = folder.write("broken.json", "{"),
                    other = folder.write("other.json", R"({"levels": []})");
  const std::string profile = std::string(kSampleRun) + "/profile.json",
                    cluster = std::string(kSampleRun) + "/cluster.json";
  std::filesystem::create_directories(folder.path("empty"));
  folder.write("full/note.txt", "x");
  const std::string empty = folder.path("empty"), full = folder.path("full");
  std::vector<std::vector<std::string>> lines;
  for (const std::string& bad : {none, broken, other, empty, full, std::string(kSampleRun)}) {
    lines.push_back({"plan", "--profile", bad, "--cluster", cluster});
    lines.push_back({"plan", "--profile", profile, "--cluster", bad == other ? profile : bad});
    lines.push_back({"compare", "--profile", bad, "--cluster", cluster});
    lines.push_back({"compare", bad});
    lines.push_back({"explain", "--profile", bad, "--cluster", cluster});
    lines.push_back({"optimize-pipedream", "--profile", bad, "--cluster", cluster});
    lines.push_back({"replan", kSampleRun, "--profile", bad, "--cluster", cluster});
    lines.push_back({"check", bad});
    lines.push_back({"simulate", bad});
    if (bad == kSampleRun) continue;
    lines.push_back({"report", bad});
    lines.push_back({"replan", bad, "--profile", profile, "--cluster", cluster});
    lines.push_back({"watch", "--tui", bad});
  }
  for (const std::vector<std::string>& line : lines) {
    // A plain watch serves; what it shows once as text is --tui's.
    std::vector<std::string> as_json = line;
    std::erase(as_json, "--tui");
    as_json.emplace_back("--json");
    const CommandResult text = stagecraft(line), json = stagecraft(as_json);
    CAPTURE(line, text.err, json.err);
    CHECK(json.code == text.code);
    CHECK(json.err == text.err);
    const bool waits = line.front() == "watch" && line.back() == empty;  // which may become a run
    CHECK((text.code == 2) == !waits);
    CHECK((json.out.empty() || waits));
  }
}

}  // namespace stagecraft::test
