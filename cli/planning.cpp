#include "cli/planning.h"

#include "base/json.h"
#include "base/table.h"
#include "cli/explain_text.h"
#include "cli/output.h"
#include "cli/output_file.h"
#include "cli/plan_profile.h"
#include "cli/remedies_text.h"
#include "cli/row_text.h"
#include "cli/search_line.h"
#include "partitioner/advice/robust_choice.h"
#include "schedules/generators/registry.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

namespace stagecraft::cli {

namespace {

/// A plan, or a refusal that says what would fit.
PlanResult plan_or_advise(const Profile& profile, const Cluster& cluster, const PlanRequest& request) {
  try {
    return make_plan(profile, cluster, request);
  } catch (const RefusedError& error) {
    throw RefusedError(error.what() + remedies_text(profile, cluster, {request}));
  }
}

}  // namespace

std::optional<std::string> beyond_machine(const Plan& plan, const std::vector<MemoryLimit>& machine) {
  const std::optional<MemoryLimit> limit = tightest(machine);
  if (!limit || !plan.predicted) return std::nullopt;
  Bytes together;
  std::string ranks;
  for (std::size_t r = 0; r < plan.predicted->memory.size(); ++r) {
    const Bytes peak = plan.predicted->memory[r];
    together += peak;
    if (r < 8) ranks += fmt::format("{}rank {} {}", r == 0 ? "" : ", ", r, format_bytes(peak));
  }
  if (together <= limit->available) return std::nullopt;
  const std::size_t count = plan.predicted->memory.size();
  return fmt::format("{} rank{} need {} together, but {}: {}{}", count, count == 1 ? "" : "s",
                     format_bytes(together), describe_limit(*limit), ranks, count > 8 ? ", ..." : "");
}

void finish_plan(PlanResult& result, const PlanOutput& output) {
  constexpr std::size_t kJittered = 5;
  if (output.jitter) add_jitter(result, *output.jitter, kJittered, output.choose_by);
  if (!output.path.empty()) write_json_output(output.path, json::write(result.best.plan));
}

std::string where_written(const PlanOutput& output) {
  return output.path.empty() ? "\nnot written anywhere: give -o plan.json\n"
                             : fmt::format("\nwritten to {}; prove it with `stagecraft check {}`\n",
                                           output.path, output.path);
}

void plan_from(const Profile& profile, const Cluster& cluster, const PlanRequest& request,
               const PlanOutput& output, const std::vector<MemoryLimit>& machine) {
  PlanResult result = plan_or_advise(profile, cluster, request);
  if (const auto reason = beyond_machine(result.best.plan, machine)) {
    throw RefusedError(fmt::format("the best plan's {}\n{}", *reason, kWhatMayFit));
  }
  finish_plan(result, output);
  std::optional<Explanation> explained;
  if (output.explain) explained = explain(profile, cluster, result, request, output.progress);
  const Measurement& layers = profile.at(result.best.plan.micro_batch_size);
  std::string text = plan_text(result, profile, cluster);
  if (output.of_graph) text += row_text(result.best.plan, layers);
  if (explained) text += explain_text(*explained, result.best.plan, layers, cluster);
  if (!output.tables.empty()) write_output(output.tables, printed(text));
  if (output.as_json) {
    Json json = plan_json(result, profile);
    if (explained) json["explanation"] = json::write(*explained);
    if (output.of_graph) json["graph"] = {{"stages", row_json(result.best.plan, layers)}};
    return print_json(json);
  }
  print(text + where_written(output));
}

void add_plan_output(CLI::App& verb, PlanOutput& output, const std::string& what_json_has) {
  verb.add_option("-o,--output", output.path, "where the plan goes (default: nowhere)")
      ->type_name("FILE")
      ->group("Output");
  verb.add_flag("--json", output.as_json, what_json_has)->group("Output");
  verb.add_option("--tables", output.tables, "beside --json: where the tables go")
      ->type_name("FILE")
      ->group("");
}

void plan_asked(const std::string& verb, const RequestOptions& options, PlanOutput output) {
  require_output(output.path, "plan");
  SearchLine line;
  PlanInputs inputs = options.read(verb);
  const std::string& schedule = inputs.request.schedule.name;
  if (options.time_limit && !find_schedule(schedule).synchronous) {
    throw InputError(
        {"--time-limit", ""},
        fmt::format("{} has no flush: its plan comes from a dynamic program and takes no time", schedule));
  }
  if (options.time_limit && *options.time_limit == 0)
    note("--time-limit 0 leaves no time to search: the plan has the first cuts that fit");
  inputs.request.search.progress = [&line](const SearchProgress& progress) { line.show(progress); };
  output.progress = [&line](const std::string& what, int tried, int all) { line.show(what, tried, all); };
  output.of_graph = options.config.empty() && is_graph(options.profile);
  plan_from(inputs.profile, inputs.cluster, inputs.request, output, inputs.machine);
}

}  // namespace stagecraft::cli
