// `stagecraft plan`: from a profile and a cluster to plan.json.

#include "cli/plan.h"

#include "cli/commands.h"
#include "cli/output.h"
#include "schedules/base/files.h"
#include "schedules/base/table.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>
#include <unistd.h>

namespace stagecraft::cli {

Plan plan_from(const Profile& profile, const Cluster& cluster, const PlanRequest& request,
               const PlanOutput& output) {
  const PlanResult result = make_plan(profile, cluster, request);
  if (!output.path.empty()) write_json_file(output.path, json::write(result.best.plan));
  if (output.as_json) {
    print_json(plan_json(result));
    return result.best.plan;
  }
  print(plan_text(result, profile, cluster));
  print(output.path.empty() ? "\nnot written anywhere: give -o plan.json\n"
                            : fmt::format("\nwritten to {}; prove it with `stagecraft check {}`\n",
                                          output.path, output.path));
  return result.best.plan;
}

namespace {

struct PlanArguments {
  std::string config;
  std::string profile;
  std::string cluster;
  std::string schema;
  PlanOutput output;
  PlanRequest request;
  std::optional<std::int64_t> micro_batch_size;
  std::optional<double> time_limit;
};

/// The size to plan for: as asked, or the only one that was measured.
std::int64_t size_of(const PlanArguments& arguments, const Profile& profile) {
  if (arguments.micro_batch_size) return *arguments.micro_batch_size;
  if (profile.measurements.size() == 1) return profile.measurements.front().micro_batch;
  std::vector<std::int64_t> sizes;
  for (const Measurement& measurement : profile.measurements) sizes.push_back(measurement.micro_batch);
  throw InputError(
      fmt::format("{} has measurements of several micro-batch sizes: choose --micro-batch-size {}",
                  arguments.profile, fmt::join(sizes, " or ")));
}

/// The config's own request, with what was asked for on the command line in its place.
PlanRequest merged(PlanRequest request, const PlanArguments& arguments, const CLI::App& command) {
  const auto given = [&](const char* option) { return command.count(option) > 0; };
  if (given("--schedule")) request.schedule.name = arguments.request.schedule.name;
  if (given("--vertical-sync")) request.schedule.vertical_sync = arguments.request.schedule.vertical_sync;
  if (given("--warmup-extra")) request.schedule.warmup_extra = arguments.request.schedule.warmup_extra;
  if (given("--virtual-stages")) request.virtual_stages = arguments.request.virtual_stages;
  if (given("--recompute")) request.recompute = arguments.request.recompute;
  request.search = arguments.request.search;
  if (given("--micro-batches")) request.micro_batches = arguments.request.micro_batches;
  if (given("--micro-batch-size")) request.micro_batch_size = *arguments.micro_batch_size;
  if (given("--stages") || given("--cuts")) {
    request.stages = arguments.request.stages;
    request.cuts = arguments.request.cuts;
  }
  request.schedule.agree_norm =
      request.schedule.agree_norm && find_schedule(request.schedule.name).synchronous;
  return request;
}

/// "placement 3 of 9, best step 12.3 ms" on stderr while a search goes on; on a terminal only, and not before
/// a second has passed.
class SearchLine {
 public:
  ~SearchLine() {
    if (drawn_) fmt::print(stderr, "\r\033[K");
  }
  void show(const SearchProgress& progress) {
    const auto now = Clock::now();
    if (!terminal_ || now - last_ < std::chrono::milliseconds(drawn_ ? 100 : 1000)) return;
    last_ = now;
    drawn_ = true;
    fmt::print(stderr, "\rsearching: placement {} of {}{}\033[K", progress.tried + 1, progress.placements,
               std::isinf(progress.best.value) ? "" : ", best step " + format_duration(progress.best));
    std::fflush(stderr);
  }

 private:
  using Clock = std::chrono::steady_clock;
  bool terminal_ = ::isatty(STDERR_FILENO) == 1;
  bool drawn_ = false;
  Clock::time_point last_ = Clock::now();
};

Json schema_of(const std::string& file) {
  if (file == "profile") return json::schema_of<Profile>();
  if (file == "cluster") return json::schema_of<Cluster>();
  return json::schema_of<Plan>();
}

std::string schedules_text() {
  std::string text = "Schedules:\n";
  for (const Schedule& schedule : schedules()) {
    text += fmt::format("  {:<12} {}\n  {:<12} ({})\n", schedule.name, schedule.summary, "", schedule.paper);
  }
  return text;
}

void plan(PlanArguments arguments, const CLI::App& command) {
  if (!arguments.schema.empty()) return print_json(schema_of(arguments.schema));
  const Schedule& schedule = find_schedule(arguments.request.schedule.name, {"--schedule", ""});
  if (arguments.time_limit) {
    if (arguments.config.empty() && !schedule.searched) {
      throw InputError(
          {"--time-limit", ""},
          fmt::format("{} is not searched for: its plan takes no time; for --schedule auto", schedule.name));
    }
    arguments.request.search.time_limit = Seconds{*arguments.time_limit};
  }
  SearchLine line;
  arguments.request.search.progress = [&line](const SearchProgress& progress) { line.show(progress); };
  if (!arguments.config.empty()) {
    const PlanInputs inputs = config_plan_inputs(arguments.config, arguments.profile, arguments.cluster);
    plan_from(inputs.profile, inputs.cluster, merged(inputs.request, arguments, command), arguments.output);
    return;
  }
  if (arguments.profile.empty() || arguments.cluster.empty()) {
    throw InputError("plan: CONFIG is required, or --profile and --cluster");
  }
  const Profile profile = read_profile(arguments.profile);
  const Cluster cluster = read_cluster(arguments.cluster);
  arguments.request.micro_batch_size = size_of(arguments, profile);
  plan_from(profile, cluster, arguments.request, arguments.output);
}

}  // namespace

void add_plan(CLI::App& app) {
  const auto arguments = std::make_shared<PlanArguments>();
  arguments->request.micro_batches = 8;
  CLI::App* command = app.add_subcommand("plan", "cut a profiled model into stages for a cluster");
  command
      ->add_option(
          "config", arguments->config,
          "run.json; its model is measured now unless --profile has it (or give --profile and --cluster)")
      ->type_name("CONFIG");
  command->add_option("--profile", arguments->profile, "profile.json of the model")->type_name("FILE");
  command
      ->add_option("--cluster", arguments->cluster,
                   "cluster.json: devices, links, memory (default: the config's, or this machine)")
      ->type_name("FILE");
  command->add_option("-o,--output", arguments->output.path, "where the plan goes")->type_name("FILE");
  command->add_option("--schedule", arguments->request.schedule.name, "one of those below")
      ->capture_default_str()
      ->type_name("NAME");
  command->add_flag("--vertical-sync", arguments->request.schedule.vertical_sync,
                    "pipedream: one version of the weights a micro-batch on all stages");
  command
      ->add_option("--virtual-stages", arguments->request.virtual_stages,
                   "stages a rank, for schedules that take several (default: the schedule's)")
      ->type_name("N")
      ->check(CLI::Range(1, 1024));
  command
      ->add_option("--warmup-extra", arguments->request.schedule.warmup_extra,
                   "1f1b: forwards more before the first backward; hides transfers, keeps as many more")
      ->type_name("N")
      ->check(CLI::Range(0, kMostMicroBatches));
  command
      ->add_option_function<std::string>(
          "--recompute",
          [arguments](const std::string& name) {
            arguments->request.recompute = json::read<Recompute>(Json(name), {"--recompute", ""});
          },
          "forwards repeated before their backward, so that only inputs are kept: none, all, or all_but_last "
          "micro-batch of a step")
      ->type_name("WHICH");
  command->add_option("--micro-batches", arguments->request.micro_batches, "of one optimizer step")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(1, kMostMicroBatches));
  command
      ->add_option("--micro-batch-size", arguments->micro_batch_size,
                   "samples; a size in the profile (default: the only one there)")
      ->type_name("N");
  command
      ->add_option(
          "--time-limit", arguments->time_limit,
          "auto: seconds to search for an order and a placement (default: a fixed amount of work, and so the "
          "same plan every time)")
      ->type_name("SECONDS")
      ->check(CLI::Range(0.0, 1e6));
  command->add_option("--stages", arguments->request.stages, "as many stages (default: what is fastest)")
      ->type_name("N");
  command
      ->add_option("--cuts", arguments->request.cuts, "your own cuts: the first layers of stages 1, 2, ...")
      ->delimiter(',')
      ->type_name("I,J,...");
  command->add_flag("--json", arguments->output.as_json,
                    "one JSON document: plan, others, what does not fit");
  command->add_option("--schema", arguments->schema, "print the JSON Schema of a kind of file, and stop")
      ->type_name("KIND")
      ->check(CLI::IsMember({"profile", "cluster", "plan"}));
  command->footer(schedules_text());
  command->callback([arguments, command] { plan(*arguments, *command); });
}

}  // namespace stagecraft::cli
