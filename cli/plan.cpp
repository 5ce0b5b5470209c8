// `stagecraft plan`: from a profile and a cluster to plan.json.

#include "stagecraft/cli/plan.h"

#include "stagecraft/base/files.h"
#include "stagecraft/base/json.h"
#include "stagecraft/base/table.h"
#include "stagecraft/base/text.h"
#include "stagecraft/cli/choose.h"
#include "stagecraft/cli/commands.h"
#include "stagecraft/cli/explain_text.h"
#include "stagecraft/cli/output.h"
#include "stagecraft/cli/plan_graph.h"
#include "stagecraft/cli/plan_pipedream.h"
#include "stagecraft/cli/plan_profile.h"
#include "stagecraft/cli/remedies_text.h"
#include "stagecraft/cli/replan.h"
#include "stagecraft/cli/search_line.h"
#include "stagecraft/schedules/generators/registry.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <memory>

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
  if (!output.path.empty()) write_json_file(output.path, json::write(result.best.plan));
}

std::string where_written(const PlanOutput& output) {
  return output.path.empty() ? "\nnot written anywhere: give -o plan.json\n"
                             : fmt::format("\nwritten to {}; prove it with `stagecraft check {}`\n",
                                           output.path, output.path);
}

Plan plan_from(const Profile& profile, const Cluster& cluster, const PlanRequest& request,
               const PlanOutput& output, const std::vector<MemoryLimit>& machine) {
  PlanResult result = plan_or_advise(profile, cluster, request);
  if (const auto reason = beyond_machine(result.best.plan, machine)) {
    throw RefusedError(fmt::format("the best plan's {}\n{}", *reason, kWhatMayFit));
  }
  finish_plan(result, output);
  std::optional<Explanation> explained;
  if (output.explain) explained = explain(profile, cluster, result, request, output.progress);
  if (output.as_json) {
    Json json = plan_json(result);
    if (explained) json["explanation"] = json::write(*explained);
    print_json(json);
    return result.best.plan;
  }
  print(plan_text(result, profile, cluster));
  if (explained) {
    print(explain_text(*explained, result.best.plan, profile.at(result.best.plan.micro_batch_size), cluster));
  }
  print(where_written(output));
  return result.best.plan;
}

namespace {

/// "--micro-batches auto"
constexpr const char* kAuto = "auto";

struct PlanArguments {
  PipedreamArguments pipedream;
  ReplanOptions replan;
  ChooseOptions choose;
  std::string schedules = "1f1b";   ///< one, several, or all
  std::string micro_batches = "8";  ///< a number, or "auto"
  std::optional<std::int64_t> batch;
  std::string config;
  std::string profile;
  std::string cluster;
  std::string schema;
  PlanOutput output;
  PlanRequest request;
  std::optional<std::int64_t> micro_batch_size;
  std::optional<double> time_limit;
  bool replicate = false;
};

/// The config's own request, with what was asked for on the command line in its place.
PlanRequest merged(PlanRequest request, const PlanArguments& arguments, const CLI::App& command) {
  const auto given = [&](const char* option) { return command.count(option) > 0; };
  if (given("--schedule")) request.schedule.name = arguments.request.schedule.name;
  if (given("--vertical-sync")) request.schedule.vertical_sync = arguments.request.schedule.vertical_sync;
  if (given("--warmup-extra")) request.schedule.warmup_extra = arguments.request.schedule.warmup_extra;
  if (given("--virtual-stages")) request.virtual_stages = arguments.request.virtual_stages;
  if (given("--recompute")) request.recompute = arguments.request.recompute;
  request.search = arguments.request.search;
  if (given("--micro-batches") && arguments.micro_batches != kAuto) {
    request.micro_batches = arguments.request.micro_batches;
  }
  if (given("--micro-batch-size")) request.micro_batch_size = *arguments.micro_batch_size;
  if (given("--stages") || given("--cuts")) {
    request.stages = arguments.request.stages;
    request.cuts = arguments.request.cuts;
  }
  if (given("--widths")) request.widths = arguments.request.widths;
  request.replicate = arguments.replicate;
  request.schedule.agree_norm =
      request.schedule.agree_norm && find_schedule(request.schedule.name).synchronous;
  return request;
}

Json schema_of(const std::string& file) {
  if (file == "profile") return json::schema_of<Profile>();
  if (file == "cluster") return json::schema_of<Cluster>();
  if (file == "explanation") return json::schema_of<Explanation>();
  return json::schema_of<Plan>();
}

std::string schedules_text() {
  std::string text = "Schedules:\n";
  for (const Schedule& schedule : schedules()) {
    text += fmt::format("  {:<12} {}\n  {:<12} ({})\n", schedule.name, schedule.summary, "", schedule.paper);
  }
  return text;
}

/// What a run was planned with is in its plan: only inputs and outputs are to say.
ReplanOptions replan_options(const PlanArguments& arguments, const CLI::App& command) {
  for (const char* option :
       {"config", "--schedule", "--micro-batches", "--micro-batch-size", "--stages", "--cuts",
        "--virtual-stages", "--warmup-extra", "--vertical-sync", "--explain"}) {
    if (command.count(option) > 0) {
      throw InputError(fmt::format("plan --replan keeps what the run's plan says: {} is not for it", option));
    }
  }
  ReplanOptions options = arguments.replan;
  options.profile = arguments.profile;
  options.cluster = arguments.cluster;
  options.output = arguments.output;
  if (arguments.time_limit) options.search.time_limit = Seconds{*arguments.time_limit};
  return options;
}

int micro_batches_of(const std::string& text) {
  std::string_view left = text;
  const auto number = take_number(left);
  if (!number || !left.empty() || *number < 1 || *number > kMostMicroBatches) {
    throw InputError({"--micro-batches", ""},
                     fmt::format("\"{}\": expected 1 to {}, or \"{}\"", text, kMostMicroBatches, kAuto));
  }
  return *number;
}

/// Absent: chosen for each stage.
std::optional<Recompute> recompute_of(const std::string& name) {
  return one_setting(json::read<RecomputeAsked>(Json(name), {"--recompute", ""}));
}

/// Whether there is something to choose, rather than one schedule to plan.
bool chooses(const PlanArguments& arguments) {
  return arguments.choose.pareto || arguments.micro_batches == kAuto || arguments.schedules == "all" ||
         arguments.schedules.find(',') != std::string::npos;
}

void choose(const Profile& profile, const Cluster& cluster, const PlanRequest& base,
            const PlanArguments& arguments, const CLI::App& command, SearchLine& line,
            const std::vector<MemoryLimit>& machine = {}) {
  const bool own_schedule =
      !arguments.config.empty() && command.count("--schedule") == 0 && !arguments.choose.pareto;
  ChoiceRequest request{.schedules = own_schedule ? std::vector{base.schedule.name}
                                                  : schedule_names(arguments.schedules, {"--schedule", ""}),
                        .batchings = {{base.micro_batch_size, base.micro_batches}},
                        .base = base};
  request.progress = [&line](const std::string& schedule, int tried, int all) {
    line.show(schedule, tried, all);
  };
  if (arguments.micro_batches == kAuto) {
    request.batchings =
        batchings_of(profile, arguments.batch.value_or(base.micro_batch_size * base.micro_batches));
  }
  request.falling_caps = arguments.choose.pareto;
  // A run's config says what is recomputed, and train holds the plan to it.
  if (arguments.choose.pareto && arguments.config.empty() && command.count("--recompute") == 0) {
    request.base.recompute = std::nullopt;
  }
  ChooseOptions options = arguments.choose;
  options.output = arguments.output;
  choose_from(profile, cluster, request, options, machine);
}

/// What the options say of one another, and of the schedule.
void check_arguments(const PlanArguments& arguments) {
  const bool several = chooses(arguments);
  if (several && arguments.output.jitter) {
    throw InputError({"--jitter", ""}, "is for one schedule: plan the one that was chosen");
  }
  if (several && arguments.output.explain) {
    throw InputError({"--explain", ""}, "is for one schedule: plan the one that was chosen");
  }
  if (!several && !arguments.choose.svg.empty()) {
    throw InputError({"--svg", ""}, "draws what there is to choose from: for --pareto, or several schedules");
  }
  if (arguments.batch && arguments.micro_batches != kAuto) {
    throw InputError({"--batch", ""}, "says how many samples a step has: for --micro-batches auto");
  }
  if (arguments.micro_batches == kAuto && arguments.config.empty() && !arguments.batch) {
    throw InputError({"--micro-batches", ""}, "auto: say with --batch how many samples a step has");
  }
  if (arguments.micro_batches == kAuto && arguments.micro_batch_size) {
    throw InputError({"--micro-batch-size", ""}, "is what --micro-batches auto chooses: give one of the two");
  }
  if (several || !arguments.time_limit || !arguments.config.empty()) return;
  if (!find_schedule(arguments.schedules, {"--schedule", ""}).synchronous) {
    throw InputError({"--time-limit", ""},
                     fmt::format("{} has no flush: its plan comes from a dynamic program and takes no time",
                                 arguments.schedules));
  }
}

void plan(PlanArguments arguments, const CLI::App& command) {
  if (!arguments.schema.empty()) return print_json(schema_of(arguments.schema));
  if (!arguments.pipedream.cost.empty()) {
    return plan_pipedream(arguments.pipedream, arguments.profile, arguments.cluster,
                          arguments.micro_batch_size, arguments.output.as_json, command);
  }
  if (!arguments.replan.run_dir.empty()) return replan(replan_options(arguments, command));
  const bool several = chooses(arguments);
  if (arguments.choose.pareto && command.count("--schedule") == 0) arguments.schedules = "all";
  check_arguments(arguments);
  PlanRequest& own = arguments.request;
  own.schedule.name = schedule_names(arguments.schedules, {"--schedule", ""}).front();
  if (arguments.micro_batches != kAuto) own.micro_batches = micro_batches_of(arguments.micro_batches);
  if (arguments.time_limit) own.search.time_limit = Seconds{*arguments.time_limit};
  SearchLine line;
  arguments.request.search.progress = [&line](const SearchProgress& progress) { line.show(progress); };
  arguments.output.progress = [&line](const std::string& what, int tried, int all) {
    line.show(what, tried, all);
  };
  if (!arguments.config.empty()) {
    const PlanInputs inputs = config_plan_inputs(arguments.config, arguments.profile, arguments.cluster);
    const PlanRequest request = merged(inputs.request, arguments, command);
    if (several) {
      return choose(inputs.profile, inputs.cluster, request, arguments, command, line, inputs.machine);
    }
    plan_from(inputs.profile, inputs.cluster, request, arguments.output, inputs.machine);
    return;
  }
  if (arguments.profile.empty() || arguments.cluster.empty()) {
    throw InputError("plan: CONFIG is required, or --profile and --cluster");
  }
  const Profile profile = read_chain(arguments.profile, arguments.micro_batch_size);
  const Cluster cluster = read_cluster(arguments.cluster);
  own.micro_batch_size = arguments.micro_batches == kAuto && !arguments.micro_batch_size
                             ? profile.measurements.front().micro_batch
                             : size_to_plan(profile, arguments.profile, arguments.micro_batch_size);
  // Whoever runs it, replicas are worth having; a run's config says itself what it wants.
  own.replicate = arguments.replicate || command.count("--replicate") == 0;
  if (several) return choose(profile, cluster, own, arguments, command, line);
  if (is_graph(arguments.profile)) return plan_graph_from(arguments.profile, cluster, own, arguments.output);
  plan_from(profile, cluster, arguments.request, arguments.output);
}

}  // namespace

void add_plan(CLI::App& app) {
  const auto arguments = std::make_shared<PlanArguments>();
  CLI::App* command = app.add_subcommand("plan", "cut a profiled model into stages for a cluster");
  command
      ->add_option(
          "config", arguments->config,
          "run.json; its model is measured now unless --profile has it (or give --profile and --cluster)")
      ->type_name("CONFIG");
  command
      ->add_option("--profile", arguments->profile,
                   "profile.json of the model, or a graph of PipeDream's profiler (a name that ends in .txt)")
      ->type_name("FILE");
  command
      ->add_option("--cluster", arguments->cluster,
                   "cluster.json: devices, links, memory (default: the config's, or this machine)")
      ->type_name("FILE");
  command->add_option("-o,--output", arguments->output.path, "where the plan goes")->type_name("FILE");
  command
      ->add_option(
          "--schedule", arguments->schedules,
          "one of those below, or several: the fastest is taken; all: those that train as one device "
          "would")
      ->capture_default_str()
      ->type_name("NAME,NAME,...|all");
  command->add_flag("--pareto", arguments->choose.pareto,
                    "all plans that no other beats in both time and memory (--schedule: default all)");
  command->add_option("--svg", arguments->choose.svg, "a picture of time against memory")
      ->type_name("FILE.svg");
  command->add_flag("--vertical-sync", arguments->request.schedule.vertical_sync,
                    "pipedream: one version of the weights per micro-batch on all stages");
  command
      ->add_option("--virtual-stages", arguments->request.virtual_stages,
                   "stages per rank, for schedules that take several (default: the schedule's)")
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
          [arguments](const std::string& name) { arguments->request.recompute = recompute_of(name); },
          "forwards repeated before their backward, so that only inputs are kept: none, all, or all_but_last "
          "micro-batch of a step; auto: for each stage the least that fits, with its cuts (default: none)")
      ->type_name("WHICH");
  command
      ->add_option("--micro-batches", arguments->micro_batches,
                   "of one optimizer step; auto: of every size in the profile, so that --batch is filled")
      ->capture_default_str()
      ->type_name("N|auto");
  command->add_option("--batch", arguments->batch, "samples per step, for --micro-batches auto")
      ->type_name("N")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 40));
  command
      ->add_option("--micro-batch-size", arguments->micro_batch_size,
                   "samples; a size in the profile (default: the only one there)")
      ->type_name("N");
  command
      ->add_option("--time-limit", arguments->time_limit,
                   "seconds to search for cuts, widths and (auto) an order and a placement (default: a fixed "
                   "amount of "
                   "work, and so the same plan every time)")
      ->type_name("SECONDS")
      ->check(CLI::Range(0.0, 1e6));
  command->add_option("--stages", arguments->request.stages, "as many stages (default: what is fastest)")
      ->type_name("N");
  command
      ->add_option("--cuts", arguments->request.cuts, "your own cuts: the first layers of stages 1, 2, ...")
      ->delimiter(',')
      ->type_name("I,J,...");
  command->add_flag("--explain", arguments->output.explain,
                    "why each cut is where it is, what the step is made of, and what other devices, memory, "
                    "links and micro-batches would bring");
  CLI::Option* jitter = command->add_option_function<int>(
      "--jitter", [arguments](int samples) { arguments->output.jitter = Jitter{.samples = samples}; },
      "simulate the five best plans as often with times that vary as the profile's did, and say what the "
      "median "
      "and 95 % stay below");
  jitter->check(CLI::Range(1, 1'000'000))->type_name("SAMPLES");
  command
      ->add_option_function<std::string>(
          "--choose-by",
          [arguments](const std::string& by) {
            arguments->output.choose_by = by == "p95" ? ChooseBy::p95 : ChooseBy::step;
          },
          "--jitter: the plan with the least step, or with the least 95 % (default: step)")
      ->type_name("step|p95")
      ->check(CLI::IsMember({"step", "p95"}))
      ->needs(jitter);
  CLI::Option* replanned =
      command
          ->add_option("--replan", arguments->replan.run_dir,
                       "whether another plan would pay for a run that has measured its stages")
          ->type_name("RUN_DIR");
  command
      ->add_option_function<double>(
          "--switch-seconds",
          [arguments](double seconds) { arguments->replan.switch_cost = Seconds{seconds}; },
          "--replan: what stopping and starting again costs (default: 60)")
      ->type_name("SECONDS")
      ->check(CLI::Range(0.0, 1e9))
      ->needs(replanned);
  command
      ->add_option_function<std::string>(
          "--blame",
          [arguments](const std::string& name) {
            arguments->replan.blame = name == "layers" ? Attribution::layers : Attribution::devices;
          },
          "--replan: what slow stages are put down to in the plan that -o writes (default: devices)")
      ->type_name("devices|layers")
      ->check(CLI::IsMember({"devices", "layers"}))
      ->needs(replanned);
  command->add_flag("--replicate,!--no-replicate", arguments->replicate,
                    "whether stages may have several replicas (default: no for CONFIG, whose pipeline.widths "
                    "says what it has; otherwise yes)");
  command->add_option("--widths", arguments->request.widths, "your own numbers of replicas of each stage")
      ->delimiter(',')
      ->type_name("N,M,...");
  command->add_flag("--json", arguments->output.as_json,
                    "one JSON document: plan, others, what does not fit");
  command->add_option("--schema", arguments->schema, "print the JSON Schema of a kind of file, and stop")
      ->type_name("KIND")
      ->check(CLI::IsMember({"profile", "cluster", "plan", "explanation"}));
  add_pipedream_options(*command, arguments->pipedream);
  command->footer(schedules_text());
  command->callback([arguments, command] { plan(*arguments, *command); });
}

}  // namespace stagecraft::cli
