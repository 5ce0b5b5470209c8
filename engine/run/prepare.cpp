#include "engine/run/prepare.h"

#include "engine/run/checkpoint.h"
#include "engine/run/devices.h"
#include "engine/run/metrics.h"
#include "engine/run/plan_source.h"
#include "schedules/base/files.h"

#include <fmt/format.h>

#include <filesystem>

namespace stagecraft {
namespace {

/// The plan the run directory has, where it still fits this config and number of ranks: a resumed run goes on
/// with its own plan unless it is asked for another.
std::optional<Plan> earlier_plan(const RunConfig& config, const std::string& file, const Materials& materials,
                                 const std::optional<World>& world) {
  const std::string path = RunPaths{config.run_dir}.plan();
  if (!std::filesystem::exists(path)) return std::nullopt;
  Plan plan = read_plan(path);
  try {
    check_plan(plan, path, config, file, materials.model, world);
  } catch (const InputError&) {
    return std::nullopt;
  }
  return plan;
}

/// The plan that the others will read: a time may lose its last bit on the way through text, and schedules
/// that order by time must give every rank the same program.
Plan as_written(Plan plan) {
  for (Json text = json::write(plan);;) {
    plan = json::read<Plan>(text, {"plan", ""});
    Json again = json::write(plan);
    if (again == text) return plan;
    text = std::move(again);
  }
}

}  // namespace

Prepared prepare(const TrainRequest& request, RunConfig config, const std::optional<World>& world,
                 const std::function<void(const RunPaths&)>& locked) {
  const std::string& file = request.config;
  Prepared prepared;
  check_device(config, file);
  if (!request.dry_run && !request.print_config) {
    prepared.directory = std::make_unique<RunDirectory>(config.run_dir, request.resume);
    locked(prepared.directory->paths());
  }
  Materials materials = open_materials(config, file);
  if (config.initial_checkpoint && !std::filesystem::is_directory(*config.initial_checkpoint)) {
    throw InputError({file, "/initial_checkpoint"},
                     fmt::format("no such folder: {}", *config.initial_checkpoint));
  }
  StartPoint start;
  std::optional<Manifest> manifest;
  if (request.resume) {
    start.checkpoint = newest_checkpoint(RunPaths{config.run_dir}.checkpoints());
    if (!start.checkpoint.empty()) {
      manifest = read_manifest(start.checkpoint);
      start.step = manifest->step;
      start.validation_owed = manifest->validation_owed;
    }
  }
  if (manifest && config.threads_per_rank == 0) config.threads_per_rank = manifest->threads;
  if (manifest && config.threads_per_rank != manifest->threads) {
    prepared.notes.push_back(
        fmt::format("{} threads a rank, where the run had {}: from here on numbers may differ from an "
                    "uninterrupted run's in "
                    "their last bits",
                    config.threads_per_rank, manifest->threads));
  }
  std::optional<Plan> plan;
  const bool asked = !request.plan.empty() || config.pipeline.plan;
  if (manifest && !asked) plan = earlier_plan(config, file, materials, world);
  if (!plan) {
    ResolvedPlan resolved = resolve_plan(config, file, materials, request.plan, world);
    plan = std::move(resolved.plan);
    config.threads_per_rank = resolved.threads;
    for (std::string& note : resolved.notes) prepared.notes.push_back(std::move(note));
  }
  check_schedule(config, plan->schedule.name, file);
  if (manifest) check_resume(*manifest, start.checkpoint, config, materials, *plan);
  prepared.setup = std::make_unique<RunSetup>(std::move(config), file, std::move(materials),
                                              as_written(std::move(*plan)), std::move(start));
  return prepared;
}

void write_run_files(const RunPaths& paths, const RunSetup& setup) {
  make_folder(paths.logs());
  make_folder(paths.checkpoints());
  write_json_file(paths.config(), json::write(setup.config()));
  write_json_file(paths.plan(), json::write(setup.plan()));
  cut_metrics_back(paths.metrics(), setup.start().step, setup.start().validation_owed);
  if (setup.start().step < setup.shape().steps)
    std::filesystem::remove(paths.summary());  // the session before's
  if (setup.start().checkpoint.empty()) std::filesystem::remove(paths.metrics());
}

std::string setup_text(const RunSetup& setup, const std::string& file, const std::string& run_dir) {
  Json json;
  json["file"] = file;
  json["run_dir"] = run_dir;
  json["config"] = json::write(setup.config());
  json["plan"] = json::write(setup.plan());
  json["start"] = json::write(setup.start());
  // Not as text: a path is whatever bytes the file system has, JSON is UTF-8.
  const std::vector<std::uint8_t> bytes = Json::to_msgpack(json);
  return {bytes.begin(), bytes.end()};
}

RunPaths paths_from_text(const std::string& text) {
  return {Json::from_msgpack(text).at("run_dir").get<std::string>()};
}

std::unique_ptr<RunSetup> setup_from_text(const std::string& text) {
  const Json json = Json::from_msgpack(text);
  const auto file = json.at("file").get<std::string>();
  auto config = json::read<RunConfig>(json.at("config"), {file, ""});
  Materials materials = open_materials(config, file);
  return std::make_unique<RunSetup>(std::move(config), file, std::move(materials),
                                    json::read<Plan>(json.at("plan"), {"plan", ""}),
                                    json::read<StartPoint>(json.at("start"), {"start", ""}));
}

}  // namespace stagecraft
