// `stagecraft watch RUN_DIR...`: a page of runs that go, or went.

#include "base/error.h"
#include "base/file_kind.h"
#include "base/files.h"
#include "base/near_path.h"
#include "cli/commands.h"
#include "cli/number_ranges.h"
#include "cli/output.h"
#include "cli/terminal.h"
#include "engine/records/metrics/run_paths.h"
#include "engine/records/view/run_view.h"
#include "engine/records/watch/screen_text.h"
#include "engine/records/watch/server.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <ctime>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace stagecraft::cli {
namespace {

struct WatchOptions {
  std::vector<std::string> run_dirs;
  int port = 0;
  bool json = false, tui = false;
};

constexpr std::size_t kMostNamed = 3;

/// What is shown once, now, or waited for.
enum class Look : std::uint8_t { once, on };

/// One that is not there yet, or has nothing in it, may become one, for who goes on looking.
void require_run(const std::string& run_dir, Look look) {
  if (!is_there(run_dir)) {
    if (look == Look::once) throw InputError({run_dir, ""}, "no such run directory" + path_meant(run_dir));
    return;
  }
  if (!is_folder(run_dir)) throw InputError({run_dir, ""}, "is no folder, and so no run's");
  const RunPaths paths{run_dir};
  // A plan alone is no run's.
  for (const std::string& its : {paths.lock(), paths.config(), paths.metrics(), paths.summary(),
                                 paths.exit_record(), paths.logs(), paths.live(), paths.checkpoints()}) {
    if (is_there(its) && !is_there(RunPaths{its}.plan())) return;  // a run may be called "live"
  }
  if (std::filesystem::is_empty(run_dir)) return;
  std::vector<std::string> inside;
  for (const auto& entry : std::filesystem::directory_iterator(run_dir)) {
    if (is_there(RunPaths{entry.path()}.plan())) inside.push_back(entry.path());
  }
  std::ranges::sort(inside);
  if (inside.size() > kMostNamed) inside.resize(kMostNamed);
  throw InputError(
      {run_dir, ""},
      fmt::format("is {} with nothing of a run in it; expected run directories{}", kind_at(run_dir),
                  inside.empty() ? ", as a config's run_dir names them"
                                 : fmt::format(", such as {}", fmt::join(inside, " "))));
}

std::vector<RunView> views_of(const std::vector<std::string>& run_dirs, Look look) {
  std::vector<RunView> runs;
  for (const std::string& run_dir : run_dirs) {
    require_run(run_dir, look);
    runs.emplace_back(run_dir);
  }
  return runs;
}

/// Those that end a process: they wait for who asks for them.
sigset_t block_end_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return signals;
}

void print_once(const WatchOptions& options) {
  constexpr std::size_t kPiece = std::size_t{64} << 20U;
  std::vector<RunView> runs = views_of(options.run_dirs, Look::once);
  for (RunView& run : runs) {
    while (!run.follow(kPiece)) continue;
  }
  print_json(document_of(runs, /*live=*/false));
}

/// Drawn over itself every second; once where nobody sees it change.
void draw(const WatchOptions& options) {
  constexpr std::size_t kPiece = std::size_t{4} << 20U;
  constexpr timespec kEvery{1, 0};
  const Terminal terminal = standard_output();
  sigset_t signals = block_end_signals();
  std::vector<RunView> runs = views_of(options.run_dirs, terminal.present ? Look::on : Look::once);
  for (;;) {
    bool all = true;
    for (RunView& run : runs) all = run.follow(kPiece) && all;
    if (!terminal.present && !all) continue;
    if (terminal.present) print_drawing("\x1b[H\x1b[2J");
    print_document(screen_text(document_of(runs, /*live=*/false), terminal.columns));
    if (terminal.present) print("Ctrl-C ends.\n");
    finish_output();
    if (!terminal.present || sigtimedwait(&signals, nullptr, &kEvery) > 0) return;
  }
}

void serve(const WatchOptions& options) {
  sigset_t signals = block_end_signals();  // before any thread is made, so that none gets them
  const WatchServer server(views_of(options.run_dirs, Look::on), options.port);
  print(fmt::format(
      "{}\nThe address is for this machine alone, and a key: whoever has it sees the runs. Ctrl-C ends.\n",
      server.address()));
  for (const std::string& run_dir : options.run_dirs) {
    if (!is_there(run_dir))
      print(fmt::format("{}: nothing is there yet, and the page waits for it\n", run_dir));
  }
  finish_output();
  int signal = 0;
  sigwait(&signals, &signal);
}

}  // namespace

void add_watch(CLI::App& app) {
  const auto options = std::make_shared<WatchOptions>();
  CLI::App* verb = app.add_subcommand("watch", "serve a page of runs, while they go and afterwards");
  verb->add_option("RUN_DIR", options->run_dirs,
                   "directories of runs; one that is not there yet is waited for")
      ->type_name("DIR")
      ->required();
  CLI::Option* const port =
      verb->add_option("--port", options->port, "of 127.0.0.1 (default: any that is free)")
          ->type_name("N")
          ->check(from_to(0, 65535));
  CLI::Option* const json =
      verb->add_flag("--json", options->json, "print what the page is told, once, and end")->group("Output");
  verb->add_flag("--tui", options->tui, "the essentials in this terminal, drawn anew every second")
      ->group("Output")
      ->excludes(port)
      ->excludes(json);
  json->excludes(port);
  verb->callback([options] {
    if (options->json) return print_once(*options);
    options->tui ? draw(*options) : serve(*options);
  });
}

}  // namespace stagecraft::cli
