// `stagecraft export RUN_DIR -o DIR`: a checkpoint's weights for PyTorch.

#include "engine/run/save/export.h"

#include "base/json.h"
#include "base/stopwatch.h"
#include "base/table.h"
#include "cli/closed_set.h"
#include "cli/commands.h"
#include "cli/number_ranges.h"
#include "cli/output.h"
#include "engine/run/show/progress.h"
#include "engine/run/train/signals.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <csignal>
#include <memory>
#include <unistd.h>

namespace stagecraft::cli {
namespace {

struct ExportOptions {
  ExportRequest request;
  std::int64_t step = -1;
  std::string dtype, shard;
  bool json = false;
};

ExportType type_of(const std::string& name) {
  if (name == "float32") return ExportType::float32;
  if (name == "bfloat16") return ExportType::bfloat16;
  if (name == "float16") return ExportType::float16;
  return ExportType::as_they_are;
}

/// What is drawn on a terminal. Exports of moments draw nothing.
class Drawing {
 public:
  void update(std::uint64_t done, std::uint64_t all) {
    constexpr std::uint64_t kLarge = std::uint64_t{1} << 30U;
    constexpr std::int64_t kMega = 1'000'000;
    if (all < kLarge || ::isatty(STDERR_FILENO) != 1) return;
    if (bar_ == nullptr) {
      const auto draw = [](const std::string& text) { complain(text); };
      bar_ = std::make_unique<ProgressBar>(0, static_cast<std::int64_t>(all) / kMega, draw);
    }
    elapsed_ = watch_.read();
    bar_->update(static_cast<std::int64_t>(done) / kMega, elapsed_);
  }
  void clear() { bar_.reset(); }

 private:
  Stopwatch watch_;
  Seconds elapsed_{0};
  std::unique_ptr<ProgressBar> bar_;
};

/// Thrown where a signal asked for the end. No std::exception: what handles errors on the way lets it pass.
struct Stopped {
  int signal;
};

/// The export, unless a signal comes: then it ends at the next piece that is written, with nothing left behind,
/// and the process as the signal would have ended it. A second Ctrl-C ends it at once.
ExportRecord export_unless_stopped(const ExportRequest& request, Drawing& drawing) {
  try {
    const StopSignals signals([](int) {});
    StopSignals::training_begins();
    return export_weights(request, [&](std::uint64_t done, std::uint64_t all) {
      if (StopSignals::received() != 0)
        throw Stopped{StopSignals::received()};  // NOLINT(bugprone-std-exception-baseclass)
      drawing.update(done, all);
    });
  } catch (const Stopped& stopped) {
    drawing.clear();
    (void)std::raise(stopped.signal);
    throw InputError("export: stopped");  // by a signal that the process ignores
  }
}

void run(ExportOptions options) {
  ExportRequest& request = options.request;
  if (options.step >= 0) request.step = options.step;
  request.type = type_of(options.dtype);
  if (!options.shard.empty()) {
    const auto bytes = shard_bytes(options.shard);
    if (!bytes) {
      throw InputError(
          fmt::format("export: --shard: expected a size like 5GB or 500MiB, found \"{}\"", options.shard));
    }
    request.shard_bytes = *bytes;
  }
  Drawing drawing;
  const ExportRecord record = export_unless_stopped(request, drawing);
  drawing.clear();
  if (options.json) {
    print_json(json::write(record));
    return;
  }
  const std::size_t files = record.files.size();
  print(fmt::format("{}: {} tensors of step {}{}, {} in {}, {} file{}\n", request.out, record.tensors,
                    record.step, record.averaged ? " (averaged weights)" : "",
                    format_bytes(Bytes{record.bytes}), record.dtype, files, files == 1 ? "" : "s"));
}

}  // namespace

void add_export(CLI::App& app) {
  const auto options = std::make_shared<ExportOptions>();
  CLI::App* verb = app.add_subcommand("export", "write a checkpoint's weights for PyTorch or Hugging Face");
  verb->add_option("RUN_DIR", options->request.from, "directory of a run, or one of its checkpoints")
      ->type_name("DIR")
      ->required();
  constexpr const char* kFrom = "What is exported";
  verb->add_option("--step", options->step, "of the checkpoint (default: the newest)")
      ->check(not_negative<std::int64_t>())
      ->type_name("N")
      ->group(kFrom);
  verb->add_option("--model", options->request.model,
                   "model folder of a captured model (default: as the run's config says)")
      ->type_name("FOLDER")
      ->group(kFrom);
  constexpr const char* kOutput = "Output";
  verb->add_option("-o,--output", options->request.out,
                   "folder to make; replaces nothing but an earlier export")
      ->type_name("FOLDER")
      ->required()
      ->group(kOutput);
  only(verb->add_option("--dtype", options->dtype,
                        "float32, bfloat16 or float16 (default: as they were trained)")
           ->type_name("TYPE")
           ->group(kOutput),
       {"float32", "bfloat16", "float16"});
  verb->add_option("--shard", options->shard, "most of one file, as in 5GB (default: one file)")
      ->type_name("SIZE")
      ->group(kOutput);
  verb->add_flag("--adapters", options->request.adapters,
                 "adapters alone, of a model captured with PEFT: what PeftModel.from_pretrained reads")
      ->group(kOutput);
  verb->add_flag("--json", options->json, "one JSON document instead of text")->group(kOutput);
  verb->callback([options] { run(*options); });
}

}  // namespace stagecraft::cli
