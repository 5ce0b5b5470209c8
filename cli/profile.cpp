// `stagecraft profile CONFIG`: what each layer costs here, alone or with all ranks busy under mpirun.

#include "base/core_share.h"
#include "base/failure.h"
#include "base/files.h"
#include "base/json.h"
#include "base/table.h"
#include "cli/commands.h"
#include "cli/errors.h"
#include "cli/number_ranges.h"
#include "cli/output.h"
#include "cli/output_file.h"
#include "cli/search_line.h"
#include "engine/device/accelerators.h"
#include "engine/run/resolve/devices.h"
#include "engine/run/resolve/launcher.h"
#include "engine/run/resolve/measured_cluster.h"
#include "engine/run/resolve/memory_check.h"
#include "engine/run/resolve/plan_request.h"
#include "engine/run/resolve/processes.h"
#include "engine/run/resolve/quick_profile.h"
#include "engine/run/resolve/run_transport.h"
#include "models/tensors/libtorch_error.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <memory>
#include <thread>
#include <unistd.h>

namespace stagecraft::cli {
namespace {

struct ProfileArguments {
  std::string config;
  std::vector<std::string> overrides;
  std::string output;
  std::vector<std::int64_t> micro_batch_sizes;
  std::optional<int> repeats;
  bool estimate = false;
  std::optional<double> tflops, memory_gbps;
  bool links = false;
  std::string cluster_file;
  bool json = false;
  std::string process_group;
};

/// The interquartile range as a share of the median.
std::string spread(const Timing& timing) {
  return timing.median > Seconds{} ? fmt::format("{:.0f} %", timing.spread / timing.median * 100) : "";
}

std::string measurement_table(const Measurement& measurement) {
  Table table({"", "<layer", "F ms", "iqr", "I ms", "iqr", "W ms", "iqr", "step ms", "parameters", "output",
               "kept", "transient"});
  LayerProfile total;
  for (std::size_t i = 0; i < measurement.layers.size(); ++i) {
    const LayerProfile& layer = measurement.layers[i];
    table.row({fmt::format("{}", i), layer.name, layer.forward.median, spread(layer.forward),
               layer.backward_input.median, spread(layer.backward_input), layer.backward_weight.median,
               spread(layer.backward_weight), layer.step.median, format_bytes(layer.parameters),
               format_bytes(layer.output), format_bytes(layer.kept_for_input),
               format_bytes(std::max({Bytes{}, layer.forward_transient, layer.backward_transient}))});
    total.forward.median += layer.forward.median;
    total.backward_input.median += layer.backward_input.median;
    total.backward_weight.median += layer.backward_weight.median;
    total.step.median += layer.step.median;
    total.parameters += layer.parameters;
  }
  table.rule();
  table.row({"", "all", total.forward.median, "", total.backward_input.median, "",
             total.backward_weight.median, "", total.step.median, format_bytes(total.parameters), "", "",
             ""});
  return table.text();
}

std::string heading(const Profile& profile) {
  if (profile.estimated_from) {
    return fmt::format(
        "{}, {}: not measured. Times are estimates, {}; kept bytes are exact, transients "
        "estimates.\n",
        profile.model, profile.dtype, *profile.estimated_from);
  }
  return fmt::format(
      "{} on {}{}, {}, {} thread{} per rank, {} rank{} busy, {} repeats{}\n", profile.model, profile.device,
      profile.device_megahertz > 0
          ? fmt::format(" at {} of {} MHz", profile.device_megahertz, profile.device_most_megahertz)
          : "",
      profile.dtype, profile.threads, profile.threads == 1 ? "" : "s", profile.busy_ranks,
      profile.busy_ranks == 1 ? "" : "s", profile.repeats,
      profile.times_of ? "; times of " + *profile.times_of : "");
}

/// "44 of 67 layers have ..."; empty where all were run.
std::string left_out_text(const Measurement& measurement) {
  const auto count = std::count_if(measurement.layers.begin(), measurement.layers.end(),
                                   [](const LayerProfile& layer) { return layer.measured_as.has_value(); });
  if (count == 0) return "";
  return fmt::format(
      "{} of {} layers were not run: they have the graphs of others, whose times and bytes they are "
      "given\n(profiler.representatives).\n",
      count, measurement.layers.size() - 1);
}

/// Medians and interquartile ranges.
std::string link_text(const LinkMeasurement& measured) {
  const auto share = [](double spread, double median) {
    return median > 0 ? fmt::format(" (iqr {:.0f} %)", spread / median * 100) : "";
  };
  const Link& link = measured.link;
  return fmt::format("Link over {}: latency {:.2f} us{}, {}/s per direction{}.\n", measured.transport,
                     link.latency.value * 1e6,
                     measured.latency_spread ? share(measured.latency_spread->value, link.latency.value) : "",
                     format_bytes(Bytes{static_cast<std::int64_t>(link.bytes_per_second)}),
                     measured.bytes_per_second_spread
                         ? share(*measured.bytes_per_second_spread, link.bytes_per_second)
                         : "");
}

std::string profile_text(const Profile& profile) {
  std::string out = heading(profile);
  for (const Measurement& measurement : profile.measurements) {
    out += fmt::format("\nmicro-batches of {} sample{}\n{}", measurement.micro_batch,
                       measurement.micro_batch == 1 ? "" : "s", measurement_table(measurement));
  }
  out += "\nF forward, I gradient of the input, W gradient of the weights";
  out += profile.estimated_from ? ". " : ": medians, with the interquartile range of the repeats. ";
  out +=
      "kept: from forward to backward, without the layer's input and output. transient: the worst moment of "
      "forward or backward, above what stays.\n";
  out += left_out_text(profile.measurements.front());
  if (profile.link) out += link_text(*profile.link);
  return out;
}

/// Interquartile ranges as a share of the medians, over all layers by their time.
double unrest(const Profile& profile) {
  Seconds medians;
  Seconds spreads;
  for (const Measurement& measurement : profile.measurements) {
    for (const LayerProfile& layer : measurement.layers) {
      for (const Timing& timing : {layer.forward, layer.backward_input, layer.backward_weight}) {
        medians += timing.median;
        spreads += timing.spread;
      }
    }
  }
  return medians > Seconds{} ? spreads / medians : 0;
}

void show(const Profile& profile, const ProfileArguments& arguments) {
  constexpr double kUneasy = 0.3;
  if (profile.core_share && *profile.core_share < kWholeCore) {
    note(fmt::format(
        "the measuring thread got {} of a core: others run on its cores, perhaps ranks in other containers "
        "or "
        "namespaces, which count all cores as theirs. Times are that much longer than on cores of its own",
        format_percent(*profile.core_share)));
  } else if (const double share = unrest(profile); share > kUneasy) {
    note(fmt::format(
        "the repeats of a layer differ by {} of their median: something else uses this machine. Plans "
        "made from this profile will be as uneven; measure again, or with more --repeats",
        format_percent(share)));
  }
  if (!arguments.output.empty()) write_json_output(arguments.output, json::write(profile));
  if (arguments.json) {
    print_json(json::write(profile));
    return;
  }
  print(profile_text(profile));
  print(arguments.output.empty()
            ? "\nnot written anywhere: give -o profile.json\n"
            : fmt::format("\nwritten to {}; plan with `stagecraft plan --profile {} ...`\n", arguments.output,
                          arguments.output));
}

void write_cluster(const Cluster& cluster, const ProfileArguments& arguments) {
  write_json_output(arguments.cluster_file, json::write(cluster));
  if (arguments.json) return;
  std::string levels;
  for (const NetworkLevel& level : cluster.levels) {
    levels += fmt::format("{}{} over {:.2f} us and {}/s{}", levels.empty() ? "" : ", ", level.count,
                          level.link.latency.value * 1e6,
                          format_bytes(Bytes{static_cast<std::int64_t>(level.link.bytes_per_second)}),
                          level.shared_by == SharedBy::child ? ", shared by a machine's ranks" : "");
  }
  print(fmt::format("The cluster, {}: {};\nwritten to {}, for `plan --cluster`\n", cluster.name, levels,
                    arguments.cluster_file));
}

/// Better now than after a minute of measuring.
void check_output(const std::string& path, const char* kind) {
  if (path.empty()) return;
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (::access(folder.empty() ? "." : folder.c_str(), W_OK | X_OK) != 0) {
    throw InputError({path, ""}, fmt::format("cannot be written: {}", std::strerror(errno)));
  }
  require_output(path, kind);
}

RunConfig config_of(const ProfileArguments& arguments) {
  check_output(arguments.output, "profile");
  check_output(arguments.cluster_file, "cluster");
  RunConfig config = read_run_config(arguments.config, arguments.overrides);
  if (!arguments.micro_batch_sizes.empty()) config.profiler.micro_batch_sizes = arguments.micro_batch_sizes;
  if (arguments.repeats) config.profiler.repeats = *arguments.repeats;
  return config;
}

void check_estimate(const ProfileArguments& arguments) {
  if (arguments.estimate && !(arguments.tflops && arguments.memory_gbps)) {
    throw InputError("--estimate needs the rates of the device: --tflops N --memory-gbps N");
  }
  if (!arguments.estimate && (arguments.tflops || arguments.memory_gbps)) {
    throw InputError("--tflops and --memory-gbps are rates for an estimate: give --estimate too");
  }
  if (arguments.estimate && (arguments.links || arguments.repeats)) {
    throw InputError("--estimate measures nothing: leave --links and --repeats out");
  }
  if (!arguments.cluster_file.empty() && !arguments.links) {
    throw InputError("--cluster-file writes the links that are measured: give --links too");
  }
}

void profile_alone(const ProfileArguments& arguments, const RunConfig& config) {
  constexpr double kTera = 1e12, kGiga = 1e9;
  const TrainingInputs inputs = open_training_inputs(config, arguments.config);
  if (arguments.estimate) {
    const EstimateRates rates{*arguments.tflops * kTera, *arguments.memory_gbps * kGiga};
    return show(estimated_profile(config, arguments.config, inputs, rates), arguments);
  }
  const int threads = rank_threads(config, std::nullopt);
  Profile profile = [&] {
    SearchLine line;
    line.begin("measuring layers: up to 15 s per micro-batch size");
    return quick_profile(config, arguments.config, inputs, threads,
                         prepare_device(config, arguments.config, /*machine_rank=*/0));
  }();
  if (arguments.links) profile.link = measured_local_link(config);
  show(profile, arguments);
  if (!arguments.cluster_file.empty()) {
    write_cluster(measured_cluster(config, inputs, threads, profile.link->link), arguments);
  }
}

/// What every rank reads for itself: each machine needs the config and the data.
struct Inputs {
  std::optional<RunConfig> config;
  std::optional<TrainingInputs> run;
  Failure problem{0, ""};  ///< the first rank's that has one, the same everywhere; code 0 for none
};

Inputs open_inputs(const ProfileArguments& arguments, const LaunchInfo& launch, Transport& transport) {
  Inputs inputs;
  Json mine{{"code", 0}, {"message", ""}};
  const auto note = [&] {
    const Failure failure = failure_of(std::current_exception());
    mine = {{"code", failure.code}, {"message", failure.message}};
  };
  try {
    inputs.config = config_of(arguments);
    check_device(*inputs.config, arguments.config);
    if (arguments.links || !arguments.cluster_file.empty()) require_carried(*inputs.config, transport);
    inputs.run.emplace(open_training_inputs(*inputs.config, arguments.config));
    const at::Device device = device_of(*inputs.config, launch.machine_rank);
    check_profile_memory(*inputs.config, arguments.config, *inputs.run,
                         device.is_cpu() ? launch.machine_world : ranks_on_card(device, launch.machine_world),
                         tensor_limits(device));
  } catch (const InputError&) {
    note();
  } catch (const RefusedError&) {
    note();
  }
  const std::vector<std::string> all = transport.all_gather_text(mine.dump());
  for (std::size_t r = 0; r < all.size() && inputs.problem.code == 0; ++r) {
    const Json its = Json::parse(all[r]);
    const auto message = its.at("message").get<std::string>();
    inputs.problem = {its.at("code").get<int>(), r == 0 ? message : fmt::format("rank {}: {}", r, message)};
  }
  return inputs;
}

/// Measures while the others do, so that shared caches and memory are as busy as in a run. Returns what was
/// wrong with the input, or what it lacks memory for; code 0 for nothing.
Failure profile_rank(const ProfileArguments& arguments, const LaunchInfo& launch, Transport& transport) {
  Inputs inputs = open_inputs(arguments, launch, transport);
  if (inputs.problem.code != 0) return std::move(inputs.problem);
  const int threads = rank_threads(*inputs.config, World{transport.world(), launch.machine_world});
  transport.barrier();
  const at::Device device = prepare_device(*inputs.config, arguments.config, launch.machine_rank);
  Profile profile = quick_profile(*inputs.config, arguments.config, *inputs.run, threads, device);
  profile.busy_ranks = transport.world();
  profile = mean_over_ranks(std::move(profile), transport);
  if (arguments.links) profile.link = measured_link(*inputs.config, transport, device);
  std::optional<Cluster> cluster;
  if (!arguments.cluster_file.empty()) {
    cluster = measured_cluster(*inputs.config, *inputs.run, launch, transport, device);
  }
  if (transport.rank() == Rank{0}) {
    show(profile, arguments);
    if (cluster) write_cluster(*cluster, arguments);
  }
  transport.barrier();  // nobody leaves before rank 0 has written
  return {0, ""};
}

void profile_with_others(const ProfileArguments& arguments, const LaunchInfo& launch) {
  prepare_environment();
  const auto session = connect_processes(launch, {arguments.process_group, "profile"});
  const auto transport = session->make_transport({});
  transport->waits().enter(Phase::start_up);  // the ranks read and measure, each as long as it takes
  // One process says it and ends the job: a launcher would say more of processes that end by themselves.
  const auto end = [&](const Failure& failure, bool speaks) {
    if (!speaks && session->ends_others()) std::this_thread::sleep_for(std::chrono::seconds(5));
    (void)report_failure({failure.code, speaks ? failure.message : ""});
    session->abort(failure.code);
  };
  try {
    const Failure problem =
        named([] { return ""; }, [&] { return profile_rank(arguments, launch, *transport); });
    if (problem.code != 0) end(problem, session->rank() == Rank{0});  // all ranks know
  } catch (...) {
    const Failure failure = failure_of(std::current_exception());
    transport->fail(failure.message);
    end(failure, session->rank() == Rank{0} || !failure.secondary);
  }
}

}  // namespace

void add_profile(CLI::App& app) {
  constexpr const char* kMeasured = "What is measured";
  const auto arguments = std::make_shared<ProfileArguments>();
  CLI::App* verb = app.add_subcommand(
      "profile", "measure every layer of a run's model; under mpirun all ranks measure at once");
  verb->add_option("CONFIG", arguments->config, "run.json")->required()->type_name("FILE");
  add_numbers(*verb, "--micro-batch-sizes", arguments->micro_batch_sizes, std::int64_t{1},
              std::int64_t{1'000'000},
              "samples per micro-batch; the run's own size is always measured too (default: that alone)")
      ->type_name("N,N,...")
      ->group(kMeasured);
  verb->add_option("--repeats", arguments->repeats,
                   "measurements behind each median (default: the config's profiler.repeats)")
      ->check(from_to(1, 100'000))
      ->type_name("N")
      ->group(kMeasured);
  verb->add_flag("--estimate", arguments->estimate,
                 "run nothing: calculate from the graphs of a captured model, of any size (default: measure)")
      ->group(kMeasured);
  verb->add_option("--tflops", arguments->tflops,
                   "with --estimate: the rate of matrix products, in 10^12 operations per second")
      ->check(CLI::Range(1e-3, 1e5))
      ->type_name("N")
      ->group(kMeasured);
  verb->add_option("--memory-gbps", arguments->memory_gbps,
                   "with --estimate: the rate at which memory is read and written, in 10^9 bytes per second")
      ->check(CLI::Range(1e-2, 1e6))
      ->type_name("N")
      ->group(kMeasured);
  verb->add_flag("--links", arguments->links,
                 "measure the transport between two ranks too (default: layers alone)")
      ->group(kMeasured);
  verb->add_option(
          "--cluster-file", arguments->cluster_file,
          "with --links: where the cluster goes that the ranks are on, for plan --cluster (default: nowhere)")
      ->type_name("FILE")
      ->group("Output");
  verb->add_option("--set", arguments->overrides,
                   "a value in the config, as in --set threads_per_rank=1; may be repeated")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false)
      ->group(kMeasured);
  // Hidden: Python's, which makes the group.
  verb->add_option("--process-group", arguments->process_group,
                   "torchrun's processes, as torch.distributed names them")
      ->group("");
  verb->add_option("-o,--output", arguments->output, "where the profile goes (default: nowhere)")
      ->type_name("FILE")
      ->group("Output");
  verb->add_flag("--json", arguments->json, "one JSON document instead of tables: the profile")
      ->group("Output");
  verb->callback([arguments] {
    check_estimate(*arguments);
    const LaunchInfo launch = detect_launch();
    if (arguments->estimate) require_alone(launch, "`profile --estimate`");
    require_connectable(launch, {arguments->process_group, "profile"});
    if (launch.world > 1) {
      profile_with_others(*arguments, launch);
    } else {
      const RunConfig config = config_of(*arguments);
      named([] { return ""; }, [&] { profile_alone(*arguments, config); });
    }
  });
}

}  // namespace stagecraft::cli
