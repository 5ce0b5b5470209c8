// `stagecraft explain`: plans again, and says why the plan is as it is.

#include "cli/commands.h"
#include "cli/planning.h"

#include <CLI/CLI.hpp>

#include <memory>

namespace stagecraft::cli {
namespace {

struct ExplainOptions {
  RequestOptions request;
  PlanOutput output;
};

}  // namespace

void add_explain(CLI::App& app) {
  const auto options = std::make_shared<ExplainOptions>();
  options->output.explain = true;
  CLI::App* verb = app.add_subcommand(
      "explain", "plan again, and say why each cut is where it is and what other hardware would bring");
  add_config(*verb, options->request);
  add_request_options(*verb, options->request, RequestKind::one_plan);
  add_plan_output(*verb, options->output, "one JSON document: what plan --json has, and \"explanation\"");
  verb->footer("`stagecraft plan --help` lists the schedules.");
  verb->callback([options] { plan_asked("explain", options->request, options->output); });
}

}  // namespace stagecraft::cli
