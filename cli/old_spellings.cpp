#include "stagecraft/cli/old_spellings.h"

#include "stagecraft/base/error.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>

namespace stagecraft::cli {
namespace {

/// With the value of an option that is still there, which its reader refuses.
bool is_value(const OldSpelling& old) { return std::string(old.option).find(' ') != std::string::npos; }

}  // namespace

const std::vector<OldSpelling>& old_spellings() {
  static const std::vector<OldSpelling> kAll{
      {"plan", "--vertical-sync", "plan --schedule pipedream:vertical_sync"},
      {"plan", "--warmup-extra", "plan --schedule 1f1b:warmup_extra=N"},
      {"plan", "--micro-batches auto", "compare --batch SAMPLES"},
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
  return kAll;
}

void add_old_spellings(CLI::App& app) {
  for (const OldSpelling& old : old_spellings()) {
    if (is_value(old)) continue;
    app.get_subcommand(old.verb)
        ->add_option_function<std::string>(
            old.option, [old](const std::string&) { refuse_old_spelling(old.verb, old.option); })
        ->group("")
        ->expected(0, 1)
        ->trigger_on_parse();  // before anything else can be missing or wrong
  }
}

void refuse_old_spelling(const std::string& verb, const std::string& option) {
  const auto old = std::ranges::find_if(old_spellings(), [&](const OldSpelling& known) {
    return known.verb == verb && known.option == option;
  });
  STAGECRAFT_CHECK(old != old_spellings().end(), verb + " " + option + " is in the table");
  throw InputError(fmt::format("{} {} is now `stagecraft {}`", verb, option, old->now));
}

}  // namespace stagecraft::cli
