// Options that have become verbs answer with the new command line.

#include "test/support/catch.h"
#include "test/support/command.h"

#include <iterator>
#include <sstream>
#include <utility>

using stagecraft::test::CommandResult;
using stagecraft::test::says;

namespace {

struct OldSpelling {
  std::string verb, option, now;
};

const std::vector<OldSpelling> kOldSpellings{
    {"plan", "--vertical-sync", "plan --schedule pipedream:vertical_sync"},
    {"plan", "--warmup-extra", "plan --schedule 1f1b:warmup_extra=N"},
    {"plan", "--batch", "compare --batch SAMPLES"},
    {"plan", "--pareto", "compare --pareto"},
    {"plan", "--svg", "compare --svg FILE.svg"},
    {"plan", "--jitter", "compare --jitter N --schedules NAME"},
    {"plan", "--choose-by", "compare --jitter N --choose-by p95"},
    {"plan", "--explain", "explain"},
    {"plan", "--replan", "replan RUN_DIR"},
    {"plan", "--switch-seconds", "replan RUN_DIR --switch-seconds SECONDS"},
    {"plan", "--blame", "replan RUN_DIR --attribute devices|layers"},
    {"plan", "--schema", "schema KIND"},
    {"plan", "--cost", "optimize-pipedream"},
    {"plan", "--straight-pipeline", "optimize-pipedream --straight-pipeline"},
    {"plan", "--use-fewer-machines", "optimize-pipedream --use-fewer-machines"},
    {"plan", "--use-memory-constraint", "optimize-pipedream --use-memory-constraint"},
    {"plan", "--activation-compression-ratio", "optimize-pipedream --activation-compression-ratio R"},
    {"simulate", "--compare", "compare PLAN --schedules NAME,NAME,..."},
    {"train", "--schema", "schema run"},
};

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream in(line);
  return {std::istream_iterator<std::string>(in), {}};
}

void check_answer(const std::string& line, const std::string& now) {
  const CommandResult result = stagecraft::test::stagecraft(words_of(line));
  INFO(line << ": " << result.err);
  CHECK(result.code == 2);
  CHECK(result.out.empty());
  CHECK(says(result.err, "now"));
  CHECK(says(result.err, "`stagecraft " + now + "`"));
}

}  // namespace

TEST_CASE("every option that became a verb answers, alone, with a value and among others",
          "[old_spellings]") {
  for (const auto& [verb, option, now] : kOldSpellings) {
    check_answer(verb + " " + option, now);
    check_answer(verb + " " + option + " 1", now);
    check_answer(verb + " " + option + "=1", now);
    check_answer(verb + " " + option + " none.json", now);
  }
}

TEST_CASE("lines as they were written before", "[old_spellings]") {
  for (const auto& [line, now] : std::vector<std::pair<std::string, std::string>>{
           {"plan --profile p --cluster c --explain", "explain"},
           {"plan --replan run --profile p --cluster c --blame layers", "replan RUN_DIR"},
           {"plan --profile p --cluster c --schedule 1f1b --warmup-extra 1",
            "plan --schedule 1f1b:warmup_extra=N"},
           {"plan --profile p --cluster c --pareto --micro-batches 4", "compare --pareto"},
           {"plan --profile p --cluster c --cost pipedream --json", "optimize-pipedream"},
           {"plan --micro-batches auto --batch 8", "compare --batch SAMPLES"},
           {"plan --schedule all", "compare --schedules all"},
           {"plan --profile p --cluster c --schedule 1f1b,zb_h1 -o plan.json",
            "compare --schedules 1f1b,zb_h1"},
           {"plan --schema plan", "schema KIND"},
           {"plan --stages two --pareto", "compare --pareto"},  // before what else is wrong
           {"simulate plan.json --compare all", "compare PLAN --schedules NAME,NAME,..."},
           {"train --schema", "schema run"}}) {
    check_answer(line, now);
  }
}

TEST_CASE("old spellings are in no --help", "[old_spellings]") {
  for (const auto& [verb, option, now] : kOldSpellings) {
    if (verb == "train") continue;  // the binary without the engine has no help of it
    CHECK_FALSE(says(stagecraft::test::stagecraft({verb, "--help"}).out, "  " + option + " "));
  }
}
