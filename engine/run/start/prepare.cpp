#include "engine/run/start/prepare.h"

#include "base/file_kind.h"
#include "base/files.h"
#include "base/input_path.h"
#include "base/json.h"
#include "base/table.h"
#include "engine/records/metrics/metrics.h"
#include "engine/run/resolve/devices.h"
#include "engine/run/resolve/find_plan.h"
#include "engine/run/resolve/plan_agreement.h"
#include "engine/run/resolve/resolve.h"
#include "engine/run/save/checkpoint.h"
#include "engine/run/save/checkpoint_folder.h"
#include "engine/run/save/resume_check.h"
#include "engine/run/save/setup_files.h"
#include "engine/run/show/products_note.h"
#include "models/data/data_facts.h"
#include "schedules/generators/registry.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

namespace stagecraft {
namespace {

/// The plan the run directory has, where it still fits this config and number of ranks; otherwise a note says why it
/// does not. A resumed run goes on with its own plan unless it is asked for another. Also one that was killed before
/// its first checkpoint.
std::optional<FoundPlan> earlier_plan(const RunConfig& config, const std::string& file, const Model& model,
                                      const std::optional<World>& world, std::vector<std::string>& notes) {
  const std::string path = RunPaths{config.run_dir}.plan();
  if (!is_there(path)) return std::nullopt;
  FoundPlan found{.plan = read_plan(path), .source = path};
  if (config.pipeline.skips == Skips::relay && !found.plan.skips.empty()) return std::nullopt;
  try {
    check_plan(found.plan, path, config, file, model, world);
  } catch (const PlanMismatch& mismatch) {
    notes.push_back(fmt::format("{}: the run is planned again", mismatch.fact()));
    return std::nullopt;
  }
  return found;
}

void remove_file(const std::string& path) {
  const std::error_code error = storage().remove(path);
  if (error && error != std::errc::no_such_file_or_directory) {
    throw InputError({path, ""}, "cannot be removed: " + error.message());
  }
}

/// A run without a checkpoint starts again at step 0 and makes its steps again. What an earlier session wrote
/// of them stays, under another name.
void keep_earlier_metrics(const RunPaths& paths, std::vector<std::string>& notes) {
  FileFacts facts;
  const std::error_code none = storage().facts(paths.metrics(), /*follow=*/false, facts);
  if (none == std::errc::no_such_file_or_directory) return;
  if (none) throw InputError({paths.metrics(), ""}, "cannot be read: " + none.message());
  if (facts.bytes == 0) return remove_file(paths.metrics());
  int number = 1;
  const auto earlier = [&] { return fmt::format("{}/metrics.earlier-{}.jsonl", paths.root, number); };
  while (is_there(earlier())) ++number;
  if (const std::error_code error = storage().rename(paths.metrics(), earlier())) {
    throw InputError({earlier(), ""}, "cannot be written: " + error.message());
  }
  notes.push_back(
      fmt::format("{} holds no complete checkpoint: the run starts at step 0, and the lines of the session "
                  "before are in {}",
                  paths.root, earlier()));
}

/// Said of a run that would lose minutes or hours; empty: it saves before its end, or is short.
std::string saves_late(const ResolvedRun& run) {
  constexpr Seconds kMuch{120};
  if (run.config.checkpoint.every_steps > 0 || !run.plan.predicted) return "";
  const auto steps = static_cast<double>(*run.config.train_steps - run.start.step);
  const Seconds predicted = run.plan.predicted->step * steps;
  if (predicted < kMuch) return "";
  return fmt::format("checkpoint.every_steps is 0: nothing is saved before the run's end in some {}",
                     format_duration(predicted));
}

/// On a terminal, while it lives: what takes seconds without a word.
class Announced {
 public:
  Announced(Print draw, const std::string& what) : draw_(std::move(draw)) {
    if (draw_) draw_(fmt::format("\r{}\033[K", what));
  }
  ~Announced() {
    if (draw_) draw_("\r\033[K");
  }
  Announced(const Announced&) = delete;
  Announced& operator=(const Announced&) = delete;

 private:
  Print draw_;
};

/// A folder of files per layer: a checkpoint, or what another framework wrote so.
void check_initial_checkpoint(const std::string& folder, const Model& model, const InputPlace& place) {
  require_there(folder, place);
  const std::string kind = kind_at(folder);
  if (kind != "a folder" && kind != "a checkpoint") {
    throw InputError(
        place, fmt::format("{} is {}; expected a checkpoint, as in RUN_DIR/checkpoints/step-00000100", folder,
                           kind));
  }
  for (const LayerPtr& layer : model.layers) {
    const std::string file = layer_file(layer->name());
    if (layer->parameters().empty() || is_there(folder + "/" + file)) continue;
    throw InputError(place,
                     fmt::format("{} has no file {} of the model's layer \"{}\"; expected a checkpoint "
                                 "of this model, as in RUN_DIR/checkpoints/step-00000100",
                                 folder, file, layer->name()));
  }
}

/// Nothing is trained from weights that are not there.
void check_weights(const Model& model, const std::string& file) {
  for (const LayerPtr& layer : model.layers) {
    if (const std::string why = layer->facts().missing_weights; !why.empty())
      throw InputError({file, "/model"}, why);
  }
}

/// A checkpoint is of the step in its name, and of one that the run has.
void check_start(const Manifest& manifest, const std::string& checkpoint, const RunConfig& config,
                 const std::string& file, const TrainingInputs& inputs) {
  const std::string named = checkpoint_path(folder_of(checkpoint), manifest.step);
  if (named != checkpoint) {
    throw InputError({checkpoint, ""},
                     fmt::format("is of step {}, as its manifest says: rename it to {}, or move it away",
                                 manifest.step, named));
  }
  const std::int64_t steps = run_shape(config, *inputs.data, manifest.synchronous).steps;
  if (manifest.step > steps) {
    throw InputError(
        {file, config.train_steps ? "/train_steps" : "/epochs"},
        fmt::format("{} steps in all are fewer than the {} that {} has made: ask for more, or start "
                    "another run with initial_checkpoint",
                    steps, manifest.step, checkpoint));
  }
}

/// Whether the run can take another plan, where it is to. `given`: by a file or cuts. `profiled`: whether the run has
/// what plans are made from.
void check_replan(const RunConfig& config, const Plan& plan, const std::string& file, bool given,
                  bool profiled) {
  if (!config.replan.when) return;
  const auto refuse = [&](const std::string& why) { throw InputError({file, "/replan/when"}, why); };
  if (!find_schedule(plan.schedule.name).synchronous) {
    refuse(fmt::format("{} keeps its stages to the end; leave replan out, or choose a synchronous schedule",
                       plan.schedule.name));
  }
  if (plan.placement().replicated())
    refuse("the plan's stages have replicas, for which no other plan is made yet; leave replan out");
  if (given)
    refuse("the stages are given (--plan, pipeline.plan or pipeline.cuts); leave that out, or replan");
  if (!profiled)
    refuse("the run has no profile.json to make another plan from: it began with a plan that was given");
  if (config.log.timeline_steps == 0)
    refuse("a rank's pace is measured by the steps of the timeline; set log.timeline_steps above 0");
  if (config.checkpoint.every_steps == 0)
    refuse("another plan is taken at a checkpoint; set checkpoint.every_steps");
}

/// `prepared` holds the run directory, where there is one. `found`: absent: it is looked for.
Prepared prepared_in(Prepared prepared, const TrainRequest& request, RunConfig config,
                     const std::optional<World>& world, std::optional<FoundPlan> found, Print draw = {}) {
  const std::string& file = request.config;
  if (config.bf16.enabled && config.device == DeviceKind::cpu) {
    if (std::string remark = slow_bfloat16(); !remark.empty()) prepared.notes.push_back(std::move(remark));
  }
  TrainingInputs inputs = open_training_inputs(config, file);
  if (config.loss && inputs.model.loss != nullptr) {
    prepared.notes.push_back(fmt::format(
        "/loss: {} takes the place of the loss that the model was captured with", config.loss->type.name()));
  }
  if (config.initial_checkpoint)
    check_initial_checkpoint(*config.initial_checkpoint, inputs.model, {file, "/initial_checkpoint"});
  StartPoint start;
  std::optional<Manifest> manifest;
  if (request.resume) {
    start.checkpoint = newest_checkpoint(RunPaths{config.run_dir}.checkpoints());
    if (!start.checkpoint.empty()) {
      manifest = read_manifest(start.checkpoint);
      check_start(*manifest, start.checkpoint, config, file, inputs);
      start.step = manifest->step;
      start.validation_owed = manifest->validation_owed;
    }
  }
  const bool trains = !request.dry_run && !request.print_config;
  if (trains && !manifest && !config.initial_checkpoint) check_weights(inputs.model, file);
  if (manifest && config.threads_per_rank == 0) config.threads_per_rank = manifest->threads;
  if (manifest && config.threads_per_rank != manifest->threads) {
    prepared.notes.push_back(
        fmt::format("{} threads per rank, where the run had {}: from here on numbers may differ from an "
                    "uninterrupted run's in "
                    "their last bits",
                    config.threads_per_rank, manifest->threads));
  }
  const bool asked = !request.plan.empty() || config.pipeline.plan;
  if (!found && request.resume && !asked)
    found = earlier_plan(config, file, inputs.model, world, prepared.notes);
  if (!found) {
    const Announced measuring(asked ? Print{} : std::move(draw), "measuring layers and planning");
    found = find_plan(config, file, inputs, request.plan, world,
                      request.resume ? RunPaths{config.run_dir}.profile() : "");
  }
  prepared.profile = std::move(found->profile);
  check_replan(config, found->plan, file, asked || !config.pipeline.cuts.empty(),
               prepared.profile || is_there(RunPaths{config.run_dir}.profile()));
  const int threads = found->threads.value_or(threads_for(config, world, found->plan.placement().world()));
  Resolution resolution =
      resolve(std::move(config), file, inputs, std::move(*found), std::move(start), world, threads);
  for (std::string& note : resolution.notes) prepared.notes.push_back(std::move(note));
  const ResolvedRun& run = resolution.run;
  if (run.config.validation.every_steps > 0 && inputs.data->size(Split::validation) == 0) {
    prepared.notes.push_back(
        fmt::format("validation.every_steps is {}, and the data has nothing to validate with: no "
                    "validation is made",
                    run.config.validation.every_steps));
  }
  for (std::string remark : {saves_late(run), products_note(run)}) {
    if (!remark.empty()) prepared.notes.push_back(std::move(remark));
  }
  if (inputs.loss->is_of_whole_batch() && run.config.micro_batches() > 1) {
    prepared.notes.push_back(fmt::format(
        "the loss of a batch is another than what its micro-batches' add up to (it compares samples with "
        "each other, or divides by what only the whole batch has): it sees {} samples at a time, not {}",
        run.config.micro_batch_size, run.config.train_batch_size));
  }
  if (inputs.model.compiled_for) {
    const std::string why =
        inputs.model.compiled_for->why_unused(run.config.micro_batch_size, run.config.threads_per_rank);
    if (!why.empty()) prepared.notes.push_back("the model's compiled code is not run: " + why);
  }
  if (manifest) {
    const std::vector<ResumeChange> changes =
        check_resume(*manifest, run.start.checkpoint, run.config, inputs, run.plan, request.allowed_changes);
    for (const ResumeChange& change : changes) prepared.notes.push_back(change_text(change));
    std::vector<ResumeChange>& all = resolution.run.start.changes;
    all = manifest->changes;
    all.insert(all.end(), changes.begin(), changes.end());
  }
  prepared.setup = std::make_unique<RunSetup>(std::move(resolution.run), std::move(inputs),
                                              world ? std::optional(Rank{0}) : std::nullopt);
  return prepared;
}

}  // namespace

Prepared prepare(const TrainRequest& request, RunConfig config, const std::optional<World>& launched,
                 const std::function<void(const RunPaths&)>& locked, Print draw) {
  check_allowed(request.allowed_changes);
  check_device(config, request.config);
  Prepared prepared;
  const std::optional<World> world = usable_world(config, request.config, launched);
  if (launched && world->ranks < launched->ranks) {
    prepared.notes.push_back(
        fmt::format("{} of {} ranks are used (pipeline.ranks); the others wait for the run's end",
                    world->ranks, launched->ranks));
  }
  if (!request.dry_run && !request.print_config) {
    try {
      make_folder(config.run_dir);
    } catch (const InputError& error) {  // it names what is in the way
      throw InputError({request.config, "/run_dir"}, error.what());
    }
    prepared.directory = std::make_unique<RunDirectory>(config.run_dir, request.resume);
    locked(prepared.directory->paths());
  }
  return prepared_in(std::move(prepared), request, std::move(config), world, std::nullopt, std::move(draw));
}

Prepared prepare_again(const TrainRequest& request, RunConfig config, const std::optional<World>& launched,
                       Prepared before, Plan plan) {
  Prepared prepared{.directory = std::move(before.directory), .setup = {}, .profile = {}, .notes = {}};
  before.setup.reset();
  TrainRequest resume = request;
  resume.resume = true;
  const std::optional<World> world = usable_world(config, request.config, launched);
  return prepared_in(std::move(prepared), resume, std::move(config), world,
                     FoundPlan{.plan = std::move(plan), .source = "the next plan"});
}

std::vector<std::string> write_run_files(const RunPaths& paths, const RunSetup& setup,
                                         const std::optional<Profile>& profile) {
  const StartPoint& start = setup.start();
  (void)remove_tree(paths.live());  // of a session before
  for (const std::string& folder : {paths.logs(), paths.checkpoints(), paths.live()}) {
    make_folder(folder);
    require_own_folder(folder);
  }
  std::vector<std::string> notes =
      sweep_checkpoints(paths.checkpoints());  // first: it may be what fills the disk
  for (std::string& stranger : strangers_in(paths.checkpoints())) notes.push_back(std::move(stranger));
  // First: where there is a plan, a start measures nothing.
  if (profile) write_json_file(paths.profile(), json::write(*profile), Links::replace);
  write_setup(paths, setup);
  if (start.checkpoint.empty()) {
    keep_earlier_metrics(paths, notes);
  } else if (is_there(paths.metrics())) {
    const std::int64_t last = cut_metrics_back(paths.metrics(), start.step, start.validation_owed);
    if (last < start.step) {
      notes.push_back(
          fmt::format("{} ends before step {}, where this session goes on: steps {} to {} are not in it",
                      paths.metrics(), start.step, std::max<std::int64_t>(last, 0) + 1, start.step));
    }
  }
  return notes;
}

std::string setup_text(const RunSetup& setup, const std::string& file, const RunPaths& paths) {
  Json json;
  json["file"] = file;
  json["run_dir"] = paths.root;
  json["session"] = paths.session;
  json["identity"] = paths.run;
  json["ranks"] = setup.world();
  ResolvedRun run = setup.run();
  // Other ranks may have been started in other folders.
  if (std::string& from = run.start.checkpoint; !from.empty()) from = std::filesystem::absolute(from);
  json["run"] = json::write(run);
  json["data"] = json::write(facts_of(*setup.inputs().data));
  // Not as text: a path is whatever bytes the file system has, JSON is UTF-8.
  const std::vector<std::uint8_t> bytes = Json::to_msgpack(json);
  return {bytes.begin(), bytes.end()};
}

RunPaths paths_from_text(const std::string& text) {
  const Json json = Json::from_msgpack(text);
  return {json.at("run_dir").get<std::string>(), json.at("session").get<std::string>(),
          json.at("identity").get<std::string>()};
}

int ranks_from_text(const std::string& text) { return Json::from_msgpack(text).at("ranks").get<int>(); }

std::unique_ptr<RunSetup> setup_from_text(const std::string& text, Rank rank) {
  const Json json = Json::from_msgpack(text);
  const auto file = json.at("file").get<std::string>();
  auto run = json::read<ResolvedRun>(json.at("run"), {file, ""});
  // Who holds no stage that loads needs no files.
  const auto loads = [&](const StagePlan& stage) {
    const bool end = &stage == &run.plan.stages.front() || &stage == &run.plan.stages.back();
    return (end || stage.loads) &&
           std::find(stage.ranks.begin(), stage.ranks.end(), rank) != stage.ranks.end();
  };
  TrainingInputs inputs =
      std::any_of(run.plan.stages.begin(), run.plan.stages.end(), loads)
          ? open_training_inputs(run.config, file)
          : make_training_inputs(run.config, file,
                                 dataset_of(json::read<DataFacts>(json.at("data"), {"data", ""})));
  return std::make_unique<RunSetup>(std::move(run), std::move(inputs), rank);
}

}  // namespace stagecraft
