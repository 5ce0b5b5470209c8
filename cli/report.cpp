// `stagecraft report RUN_DIR`: what a run measured beside what its plan predicted.

#include "engine/records/report/report.h"

#include "base/json.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/output_file.h"
#include "engine/records/metrics/run_paths.h"
#include "engine/records/view/page.h"
#include "engine/records/view/run_view.h"
#include "engine/records/watch/screen_text.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

namespace stagecraft::cli {
namespace {

struct ReportOptions {
  std::string run_dir;
  std::string html, svg;
  bool json = false;
};

/// All that `watch` would show.
RunView view_of(const std::string& run_dir) {
  constexpr std::size_t kPiece = std::size_t{64} << 20U;
  RunView view(run_dir);
  while (!view.follow(kPiece)) continue;
  return view;
}

/// The page of `watch`, with the run's data inside.
std::string page(const std::string& run_dir) {
  std::vector<RunView> runs;
  runs.push_back(view_of(run_dir));
  return page_of(document_of(runs, /*live=*/false));
}

/// Of a run that has not ended: how it is, and how far. "runs/a: running, step 400 of 900, 12 min left".
std::string condition(const std::string& run_dir) {
  const Json progress = view_of(run_dir).progress();
  const auto phase = progress["phase"].get<std::string>(), words = progress["words"].get<std::string>();
  return fmt::format("{}: {}{}, {}", run_dir, phase, words.empty() ? "" : fmt::format(" ({})", words),
                     position_text(progress));
}

void run(const ReportOptions& options) {
  const RunFiles files = read_run(options.run_dir);
  if (!files.ended) note(condition(options.run_dir));
  if (!files.broken_lines.empty()) {
    note(fmt::format("{}: {} broken lines are left out, the first is line {}",
                     RunPaths{options.run_dir}.metrics(), files.broken_lines.size(),
                     files.broken_lines.front()));
  }
  for (const std::string& text : files.left_out) note(text);
  const RunReport report = make_report(files);
  if (!options.html.empty()) write_output(options.html, page(options.run_dir));
  if (!options.svg.empty()) write_output(options.svg, report_svg(report, files));
  if (options.json) {
    print_json(json::write(report));
  } else {
    print(report_text(report));
    if (!options.html.empty())
      print(fmt::format("\n{} has the same with the timeline drawn.\n", options.html));
    if (!options.svg.empty()) print_written(options.svg, "a picture of the last steps");
  }
}

}  // namespace

void add_report(CLI::App& app) {
  const auto options = std::make_shared<ReportOptions>();
  CLI::App* verb =
      app.add_subcommand("report", "show where a run's time went, stage by stage, beside the prediction");
  verb->add_option("RUN_DIR", options->run_dir, "directory of a run, also of one that goes on or was killed")
      ->type_name("DIR")
      ->required();
  verb->add_option("--html", options->html,
                   "also write the page that `watch` serves, with the run's data inside (default: none)")
      ->type_name("FILE.html")
      ->group("Output");
  verb->add_option("--svg", options->svg, "also write the picture of the last steps alone (default: none)")
      ->type_name("FILE.svg")
      ->group("Output");
  verb->add_flag("--json", options->json, "one JSON document instead of text")->group("Output");
  verb->callback([options] { run(*options); });
}

}  // namespace stagecraft::cli
