// `stagecraft plan`: from a profile and a cluster to plan.json.

#include "cli/commands.h"
#include "cli/planning.h"

#include <CLI/CLI.hpp>

#include <memory>

namespace stagecraft::cli {
namespace {

struct PlanOptions {
  RequestOptions request;
  PlanOutput output;
};

}  // namespace

void add_plan(CLI::App& app) {
  const auto options = std::make_shared<PlanOptions>();
  CLI::App* verb = app.add_subcommand("plan", "cut a profiled model into stages for a cluster");
  add_config(*verb, options->request);
  add_request_options(*verb, options->request, RequestKind::one_plan);
  add_plan_output(*verb, options->output, "one JSON document: the plan, the runners-up, what does not fit");
  verb->footer("Schedules:\n" + schedules_text());
  verb->callback([options] { plan_asked("plan", options->request, options->output); });
}

}  // namespace stagecraft::cli
