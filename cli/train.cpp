// `stagecraft train CONFIG`: alone, with ranks as threads, or as one of many under mpirun or srun.

#include "engine/run/start/train.h"

#include "base/failure.h"
#include "base/json.h"
#include "base/printable.h"
#include "base/table.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/errors.h"
#include "cli/output.h"
#include "engine/run/save/background_writer.h"
#include "models/tensors/counting_allocator.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <exception>
#include <memory>
#include <stdexcept>
#include <unistd.h>

namespace stagecraft::cli {
namespace {

struct TrainOptions {
  TrainRequest request;
  bool json = false;
};

/// What a run says, on both streams. Nobody who reads slowly or not at all holds up the training; what they
/// miss is in the run directory.
class Output {
 public:
  /// `trains`: what it says is beside the run; otherwise it is all there is.
  explicit Output(bool trains)
      : writer_([trains, failed = failed_](int, int error) {
          *failed = error;
          if (!trains) return std::string();
          return note_line(fmt::format("standard output: {}; the run goes on, metrics.jsonl has every step",
                                       std::strerror(error)));
        }) {
    std::signal(SIGPIPE, SIG_IGN);  // a reader that is gone is an error of a write, and no more
  }

  void print(const std::string& text) { writer_.write(STDOUT_FILENO, printable(text)); }
  void note(const std::string& text) { writer_.write(STDERR_FILENO, note_line(text)); }
  void draw(const std::string& text) { writer_.draw(STDERR_FILENO, text); }
  void flush() { (void)writer_.flush(); }
  /// Throws std::runtime_error where standard output did not take all, as finish_output() does.
  void finish() {
    flush();
    if (*failed_ != 0) {
      throw std::runtime_error(fmt::format("cannot write to standard output: {}", std::strerror(*failed_)));
    }
  }
  void report_exception() {
    writer_.write(STDERR_FILENO, error_line(failure_of(std::current_exception()).message));
    flush();
  }

 private:
  std::shared_ptr<std::atomic<int>> failed_ = std::make_shared<std::atomic<int>>(0);  ///< errno of a write
  BackgroundWriter writer_;
};

/// ", 1.2 TFLOP/s, 41 % of the GPUs' peak"; empty for a model without products.
std::string speed(const RunSummary& summary) {
  constexpr double kGiga = 1e9, kTera = 1e12;
  const double rate = summary.flops_per_second;
  if (rate <= 0) return "";
  std::string text = rate < kTera ? fmt::format(", {:.3g} GFLOP/s", rate / kGiga)
                                  : fmt::format(", {:.3g} TFLOP/s", rate / kTera);
  if (summary.flops_utilization) {
    text += fmt::format(", {} of the GPUs' peak", format_percent(*summary.flops_utilization));
  }
  return text;
}

/// " (3 skipped: the gradient was not finite)"; empty for none.
std::string skips(const RunSummary& summary) {
  return summary.skipped_steps == 0
             ? ""
             : fmt::format(" ({} skipped: the gradient was not finite)", summary.skipped_steps);
}

void show(const TrainResult& result, const TrainOptions& options, Output& output) {
  const std::string stopped = stopped_text(result.outcome);
  if (!result.is_reporter) {
    if (!stopped.empty()) throw StoppedError("");
    return;
  }
  if (options.request.print_config || (options.json && !result.trained)) {
    print_json(result.effective_config);
  } else if (options.json) {
    print_json(json::write(result.outcome.summary));
  } else if (result.over) {
    output.print(
        fmt::format("{} had made all its steps: nothing was left to do. A larger train_steps or epochs goes "
                    "on from there.\n",
                    result.run_dir));
  } else if (!result.trained) {
    output.print("All programs are proved; this was a dry run.\n");
  } else if (stopped.empty()) {
    output.print(fmt::format(
        "Done: {}{}, {} per step (median){}. `stagecraft report {}` compares with the plan.\n",
        plural(result.outcome.steps, "step"), skips(result.outcome.summary),
        format_duration(result.outcome.summary.step.median), speed(result.outcome.summary), result.run_dir));
  }
  if (!stopped.empty()) throw StoppedError(stopped);
}

void run(const TrainOptions& options) {
  install_counting_allocator();
  const bool trains = !options.request.dry_run && !options.request.print_config;
  Output output(trains);
  TrainOutput said;
  if (!options.json) said.print = [&](const std::string& text) { output.print(text); };
  if (!options.json && ::isatty(STDERR_FILENO) == 1)
    said.draw = [&](const std::string& text) { output.draw(text); };
  said.note = [&](const std::string& text) { output.note(text); };
  said.report_exception = [&] { output.report_exception(); };
  said.flush = [&] { output.flush(); };
  show(train(options.request, said), options, output);
  if (!trains) output.finish();
}

}  // namespace

void add_train(CLI::App& app) {
  const auto options = std::make_shared<TrainOptions>();
  TrainRequest& request = options->request;
  CLI::App* verb =
      app.add_subcommand("train",
                         "prove a run's programs, then train; alone ranks are threads, under mpirun or "
                         "srun processes");
  verb->add_option("CONFIG", request.config, "run.json; configs/ has some that work as they stand")
      ->type_name("FILE")
      ->required();
  constexpr const char* kRun = "The run";
  verb->add_option("--plan", request.plan,
                   "plan.json to run (default: the model is profiled and planned now)")
      ->type_name("FILE")
      ->group(kRun);
  verb->add_option("--set", request.overrides,
                   "a value in the config, as in --set optimizer.params.lr=0.01; may be repeated")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false)
      ->group(kRun);
  CLI::Option* const resume =
      verb->add_flag(
              "--resume", request.resume,
              "go on from the newest checkpoint in run_dir; an empty one starts fresh (default: refuse "
              "a run_dir with a run)")
          ->group(kRun);
  verb->add_option(
          "--allow", request.allowed_changes,
          "with --resume: a key of the config that may have changed, as in --allow optimizer.params.lr; "
          "may be repeated")
      ->type_name("KEY")
      ->allow_extra_args(false)
      ->needs(resume)
      ->group(kRun);
  // Hidden: Python's, which makes the group.
  verb->add_option("--process-group", request.process_group,
                   "torchrun's processes, as torch.distributed names them")
      ->group("");
  constexpr const char* kStop = "Stop early";
  verb->add_flag("--dry-run", request.dry_run, "stop when everything is proved and shown")->group(kStop);
  verb->add_flag("--print-config", request.print_config,
                 "print the config with every default and inferred value, and stop")
      ->group(kStop);
  verb->add_flag("--json", options->json, "one JSON document instead of text: the summary")->group("Output");
  verb->callback([options] { run(*options); });
}

}  // namespace stagecraft::cli
