#include "engine/session/session.h"

#include "base/error.h"
#include "base/failure.h"
#include "base/files.h"
#include "base/json.h"
#include "engine/core/overflow.h"
#include "engine/device/accelerators.h"
#include "engine/records/metrics/run_holder.h"
#include "engine/run/resolve/devices.h"
#include "engine/run/resolve/find_plan.h"
#include "engine/run/resolve/memory_check.h"
#include "engine/run/resolve/resolve.h"
#include "engine/run/resolve/run_transport.h"
#include "engine/run/resolve/worker_options.h"
#include "engine/run/save/checkpoint.h"
#include "engine/run/save/checkpoint_folder.h"
#include "engine/run/save/finite_state.h"
#include "engine/run/save/resume_check.h"
#include "engine/run/save/run_dir.h"
#include "engine/run/save/setup_files.h"
#include "engine/session/measured.h"
#include "engine/session/named_state.h"
#include "engine/session/together.h"
#include "models/families/captured.h"
#include "models/tensors/counting_allocator.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <utility>

namespace stagecraft {
namespace {

/// The same for all ways to write a path.
std::string plain_folder(const std::string& path) {
  return (std::filesystem::absolute(path) / ".").lexically_normal().string();
}

/// Stands for the config in messages.
constexpr const char* kName = "pipeline";

NamedState names_of(const RunSetup& setup) {
  return {setup.inputs().model, setup.config().model.family.get_if<CapturedConfig>() != nullptr};
}

}  // namespace

struct Session::RankState {
  Rank rank;
  std::unique_ptr<Transport> transport;
  std::unique_ptr<Worker> worker;
  std::optional<double> rate;  ///< of the step under way, in place of the config's
};

Session::Session(const Json& config, const GivenTensors& first, SessionRanks ranks,
                 const std::string& checkpoint, const Meanwhile& meanwhile)
    : given_(std::move(ranks)) {
  install_counting_allocator();
  prepare_environment();
  if (!given_.threads()) {
    process_ = given_.transport->rank();
    world_ = World{given_.transport->world(), given_.machine_world};
    given_.transport->waits().enter(Phase::start_up);
  }
  try {
    start(config, first, checkpoint, meanwhile);
  } catch (const PeerError&) {
    throw;
  } catch (...) {  // what all refuse is no failure of one: the others' transports end with this one
    leave();
    throw;
  }
}

void Session::start(const Json& config, const GivenTensors& first, const std::string& checkpoint,
                    const Meanwhile& meanwhile) {
  if (!process_) {
    resolve_setup(config, first, checkpoint);
  } else {
    std::string text;
    together(*given_.transport, [&] {
      if (!is_first()) return;
      resolve_setup(config, first, checkpoint);
      Json json;
      json["run"] = json::write(setup_->run());
      text = json.dump();
    });
    text = given_.transport->broadcast(text);
    together(*given_.transport, [&] {
      if (!is_first()) hear_of_setup(text, config);
    });
  }
  make_workers(checkpoint, {}, meanwhile);
  steps_ = setup_->start().step;
}

Session::~Session() { leave(); }

void Session::leave() noexcept {
  given_.transport.reset();
  if (!crew_) return;
  await_all();
  try {  // on their own threads, where they were made
    crew_->run(
        "the end",
        [this](std::size_t place) {
          ranks_[place]->worker.reset();
          ranks_[place]->transport.reset();
        },
        [] {});
  } catch (...) {  // a session that failed has nobody left to tell
  }
}

void Session::resolve_setup(const Json& json, const GivenTensors& first, const std::string& checkpoint) {
  RunConfig config = run_config_from(json, kName);
  check_device(config, kName);
  GivenBatches* held = nullptr;
  TrainingInputs inputs = given_inputs(config, first, held);
  StartPoint start;
  std::optional<Manifest> manifest;
  if (!checkpoint.empty()) {
    manifest = read_manifest(checkpoint);
    start = {.step = manifest->step, .checkpoint = checkpoint};
    const std::string run = plain_folder(folder_of(folder_of(checkpoint)));
    RunHolder holder;
    if (!read_holder(RunPaths{run}.lock(), holder)) starts_[run] = holder.session;
    if (config.threads_per_rank == 0) config.threads_per_rank = manifest->threads;
  }
  STAGECRAFT_CHECK(!first.empty() || config.pipeline.plan,
                   "without a plan the model is measured with a batch");
  FoundPlan found = find_plan(config, kName, inputs, "", world_);
  held->forget();
  const int threads = found.threads.value_or(threads_for(config, world_, found.plan.placement().world()));
  Resolution resolution =
      resolve(std::move(config), kName, inputs, std::move(found), std::move(start), world_, threads);
  notes_ = std::move(resolution.notes);
  if (manifest) {
    (void)check_resume(*manifest, checkpoint, resolution.run.config, inputs, resolution.run.plan);
    resolution.run.start.changes = manifest->changes;
  }
  setup_ = std::make_unique<RunSetup>(std::move(resolution.run), std::move(inputs), process_);
}

void Session::hear_of_setup(const std::string& text, const Json& own) {
  auto run = json::read<ResolvedRun>(Json::parse(text).at("run"), {kName, ""});
  run.config.model = run_config_from(own, kName).model;  // it lies elsewhere on another machine
  GivenBatches* held = nullptr;
  TrainingInputs inputs = given_inputs(run.config, {}, held);
  setup_ = std::make_unique<RunSetup>(std::move(run), std::move(inputs), process_);
}

bool Session::begin_again(const Meanwhile& meanwhile) {
  if (process_ || !whole_) return false;
  States states;
  const std::optional<LossScaleState> scale = ranks_.front()->worker->loss_scale();
  for (const auto& rank : ranks_) {
    std::map<int, LayerState>& its = states.emplace_back();
    for (const int layer : rank->worker->layers()) its.emplace(layer, rank->worker->state(layer));
  }
  // What was under way goes with the old workers and their transports.
  crew_->run(
      "another beginning",
      [this](std::size_t place) {
        ranks_[place]->worker.reset();
        ranks_[place]->transport.reset();
      },
      meanwhile);
  crew_.reset();
  ranks_.clear();
  make_workers("", states, meanwhile);
  for (const auto& rank : ranks_) {
    if (scale) rank->worker->set_loss_scale(*scale);
  }
  return true;
}

void Session::make_workers(const std::string& checkpoint, const States& states, const Meanwhile& meanwhile) {
  const RunConfig& config = setup_->config();
  batches_ = std::make_unique<SessionBatches>(*setup_, kName);
  std::vector<ProcessMemory> processes;
  if (process_) {
    ranks_.push_back(std::make_unique<RankState>());
    ranks_.back()->rank = *process_;
    ranks_.back()->transport = std::move(given_.transport);
    fail_all_ = [](Rank, const std::string&) {};  // each through its own transport
  } else {
    LocalRanks local = make_local_ranks(setup_->world(), transport_options(config));
    fail_all_ = std::move(local.fail);
    std::vector<Rank> all;
    for (int r = 0; r < setup_->world(); ++r) {
      ranks_.push_back(std::make_unique<RankState>());
      ranks_.back()->rank = Rank{r};
      ranks_.back()->transport = std::move(local.transports[static_cast<std::size_t>(r)]);
      all.emplace_back(r);
    }
    if (config.device == DeviceKind::cpu) check_memory(*setup_, {process_memory(std::move(all))});
  }
  crew_ = std::make_unique<RankCrew>(
      ranks_.size(), [this](std::size_t place, const std::string& doing, const std::exception_ptr& error) {
        failed(place, doing, error);
      });
  std::exception_ptr refused;  // by all processes alike, so that none of them has failed
  on_ranks(
      "start-up",
      [&](std::size_t place) {
        RankState& its = *ranks_[place];
        at::set_num_threads(config.threads_per_rank);  // of this thread's operators
        its.transport->waits().enter(Phase::start_up);
        const auto alone = [&](const std::function<void()>& work) {
          if (!process_) return work();
          try {
            together(*its.transport, work);
          } catch (const PeerError&) {
            throw;
          } catch (...) {
            refused = std::current_exception();
          }
        };
        at::Device device = at::kCPU;
        alone(
            [&] { device = prepare_device(config, kName, process_ ? given_.machine_rank : its.rank.value); });
        if (refused) return;
        its.transport = transport_for(std::move(its.transport), *setup_, device);
        WorkerOptions options = worker_options(*setup_, device);
        options.shuffle = false;
        options.record_steps = 1;
        options.learning_rate = [&its, scheduler = options.scheduler, total = options.total_steps,
                                 optimizer = options.optimizer](std::int64_t step) {
          return its.rate ? *its.rate : scheduler.rate({step, total, optimizer->learning_rate()});
        };
        alone([&] {
          its.worker = std::make_unique<Worker>(setup_->inputs().model, *setup_->inputs().loss,
                                                batches_->read(), setup_->layers_of_stages(),
                                                setup_->placement(), *its.transport, std::move(options));
          if (checkpoint.empty()) return;
          load_checkpoint(checkpoint, setup_->inputs().model, *setup_->inputs().optimizer, *its.worker);
        });
        if (refused) return;
        if (!checkpoint.empty()) require_finite_load(*its.worker, *its.transport, checkpoint);
        if (!states.empty()) {
          for (const auto& [layer, state] : states[place]) its.worker->set_state(layer, state);
        }
        its.transport->barrier();
        if (const auto& predicted = setup_->plan().predicted)
          its.transport->waits().expect_step(predicted->step);
        its.transport->waits().enter(Phase::step);
      },
      meanwhile);
  if (refused) std::rethrow_exception(refused);
}

void Session::failed(std::size_t place, const std::string& doing, const std::exception_ptr& error) {
  const Failure failure = failure_of(error);
  const std::string name = setup_->rank_name(ranks_[place]->rank);
  const std::string text = fmt::format("{} failed during {}: {}", name, doing, failure.message);
  fail_all_(ranks_[place]->rank, text);
  if (process_ && ranks_[place]->transport) ranks_[place]->transport->fail(text);
}

void Session::abandon(const std::string& why) noexcept try {
  if (!process_ || !broken_.empty()) return;
  await_all();
  broken_ = why;
  crew_->run(
      "the end", [&](std::size_t place) { ranks_[place]->transport->fail(why); }, [] {});
} catch (...) {  // then they hear that the process ended
}

void Session::interrupt() noexcept {
  if (process_ || !fail_all_) return;
  fail_all_(Rank{0}, "interrupted");
}

void Session::require_whole() const {
  if (broken_.empty()) return;
  throw InputError(fmt::format("this pipeline has ended with an error, make another one: {}", broken_));
}

void Session::on_ranks(const std::string& doing, const RankCrew::Task& task, const Meanwhile& meanwhile) {
  try {
    crew_->run(doing, task, meanwhile);
  } catch (...) {
    broken_ = failure_of(std::current_exception()).message;
    throw;
  }
}

bool Session::reads_data() const {
  const Model& model = setup_->inputs().model;
  const auto& stages = setup_->layers_of_stages();
  for (const auto& rank : ranks_) {
    for (const StageId stage : setup_->placement().stages_of(rank->rank)) {
      const auto [first, last] = stages[stage.index()];
      const bool is_last = stage.index() + 1 == stages.size();
      if (stage.value == 0 || is_last || !model.fields_of(first, last, nullptr).empty()) return true;
    }
  }
  return false;
}

void Session::agree_on_batch(const std::string& mine, const std::string& why, const Meanwhile& meanwhile) {
  std::vector<std::string> all;
  Json json;
  json["sizes"] = mine;
  json["why"] = why;
  on_ranks(
      "the agreement on a batch",
      [&](std::size_t place) { all = ranks_[place]->transport->all_gather_text(json.dump()); }, meanwhile);
  std::vector<std::string> sizes, refusals;
  for (const std::string& text : all) {
    const Json theirs = Json::parse(text);
    sizes.push_back(theirs.at("sizes").get<std::string>());
    refusals.push_back(theirs.at("why").get<std::string>());
  }
  if (std::ranges::count(refusals, refusals.front()) == std::ssize(refusals) && !refusals.front().empty()) {
    throw InputError(refusals.front());
  }
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (refusals[rank].empty()) continue;
    throw InputError(fmt::format("rank {} refuses its batch: {}", rank, refusals[rank]));
  }
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (sizes[rank] == sizes.front()) continue;
    throw InputError({"the batch", ""},
                     fmt::format("rank {} has {}, and rank 0 {}: all take batches of the same sizes", rank,
                                 sizes[rank], sizes.front()));
  }
}

Segment Session::agreed_segment(SegmentKind kind, const GivenTensors& batch,
                                const std::vector<std::int64_t>& sizes, const Meanwhile& meanwhile) {
  Segment segment;
  std::exception_ptr refused;
  try {
    segment = batches_->take(kind, steps_, batch, sizes);
  } catch (const InputError&) {
    refused = std::current_exception();
  }
  std::string mine;
  for (const MicroBatchRange& range : segment.micro_batches) {
    mine += fmt::format("{}{}", mine.empty() ? "micro-batches of " : ", ", range.count);
  }
  if (!segment.micro_batches.empty()) {
    mine += fmt::format(" samples of length {}", segment.micro_batches.front().first / kMostGivenSamples);
  }
  agree_on_batch(mine, refused ? failure_of(refused).message : "", meanwhile);
  return segment;
}

std::shared_ptr<StepUnderWay> Session::begin(SegmentKind kind, const GivenTensors& batch,
                                             const std::vector<std::int64_t>& sizes,
                                             std::optional<double> rate, const Meanwhile& meanwhile) {
  look_back(process_ ? 0 : kMostUnderWay - 1, meanwhile);
  require_whole();
  Segment segment =
      process_ ? agreed_segment(kind, batch, sizes, meanwhile) : batches_->take(kind, steps_, batch, sizes);
  setup_->prove_also(segment);
  if (!under_way_.empty() && !setup_->programs().follow(under_way_.back()->segment_, segment)) {
    look_back(0, meanwhile);
  }
  const auto step = std::make_shared<StepUnderWay>(std::move(segment), ranks_.size());
  std::vector<RankProgramPtr> programs;
  programs.reserve(ranks_.size());
  for (const auto& rank : ranks_) programs.push_back(setup_->programs().of(step->segment_, rank->rank));
  std::string doing =
      kind == SegmentKind::train ? fmt::format("step {}", steps_ + 1) : std::string("an evaluation");
  step->task_ = crew_->begin(std::move(doing), [this, step, rate,
                                                programs = std::move(programs)](std::size_t place) {
    RankState& its = *ranks_[place];
    its.rate = rate;
    std::optional<StepReport> report;  // of the rank with the first stage
    (void)its.worker->run(programs[place], step->segment_, [&](const StepReport& found) { report = found; });
    its.worker->settle();
    step->note(place, report ? &*report : nullptr, its.rank, its.worker->events());
    if (process_) step->texts_ = its.transport->all_gather_text(std::string(step->texts_[place]));
  });
  if (kind == SegmentKind::train) ++steps_;
  under_way_.push_back(step);
  return step;
}

void Session::refuse(const std::string& why, const Meanwhile& meanwhile) {
  settle(meanwhile);
  require_whole();
  if (process_) agree_on_batch("", why, meanwhile);
}

void Session::look_back(std::size_t most, const Meanwhile& meanwhile) {
  while (!under_way_.empty() && (under_way_.size() > most || under_way_.front()->over())) {
    const std::shared_ptr<StepUnderWay> step = under_way_.front();
    under_way_.pop_front();
    std::exception_ptr error;
    try {
      step->task_->wait(meanwhile);
      continue;
    } catch (...) {
      error = std::current_exception();
    }
    bool heard = step->heard_;
    for (const auto& behind : under_way_) {  // they were left out, or ended with it
      try {
        behind->task_->wait(meanwhile);
      } catch (...) {
        heard = heard || behind->heard_;
      }
    }
    under_way_.clear();
    go_back_to(step->segment_.first_step, error, meanwhile);
    if (!heard) std::rethrow_exception(error);
  }
}

void Session::go_back_to(std::int64_t step, const std::exception_ptr& error, const Meanwhile& meanwhile) {
  steps_ = step;
  broken_ = failure_of(error).message;
  whole_ =
      std::ranges::all_of(ranks_, [&](const auto& rank) { return rank->worker->whole_state() == steps_; });
  try {
    std::rethrow_exception(error);
  } catch (const NotFiniteError&) {
    if (begin_again(meanwhile)) broken_.clear();
  } catch (...) {  // all others end the session
  }
}

SessionStep Session::step(const GivenTensors& batch, const std::vector<std::int64_t>& sizes,
                          std::optional<double> rate, const Meanwhile& meanwhile) {
  const auto step = begin(SegmentKind::train, batch, sizes, rate, meanwhile);
  look_back(0, meanwhile);
  return step->result(meanwhile);
}

SessionStep Session::evaluate(const GivenTensors& batch, const std::vector<std::int64_t>& sizes,
                              const Meanwhile& meanwhile) {
  const auto step = begin(SegmentKind::validate, batch, sizes, std::nullopt, meanwhile);
  look_back(0, meanwhile);
  return step->result(meanwhile);
}

void Session::settle(const Meanwhile& meanwhile) { look_back(0, meanwhile); }

void Session::await_all() noexcept {
  for (const auto& step : under_way_) {
    try {
      step->task_->wait([] {});
    } catch (...) {  // told to whoever asks the step
    }
  }
}

std::map<std::string, at::Tensor> Session::state(const Meanwhile& meanwhile) {
  settle(meanwhile);
  if (!whole_) require_whole();
  const NamedState names = names_of(*setup_);
  std::map<std::string, at::Tensor> all;
  for (const auto& rank : ranks_) names.read(*rank->worker, all);
  return all;
}

void Session::set_state(const std::map<std::string, at::Tensor>& weights, const Meanwhile& meanwhile) {
  settle(meanwhile);
  require_whole();
  const NamedState names = names_of(*setup_);
  for (const auto& rank : ranks_) names.write(weights, *rank->worker);
}

std::vector<std::string> Session::state_names() const {
  std::vector<std::string> names;
  const NamedState state = names_of(*setup_);
  for (const auto& [name, places] : state.places()) names.push_back(name);
  return names;
}

std::string Session::save(const std::string& path, const Meanwhile& meanwhile,
                          const std::function<void()>& beside, const std::optional<GivenRate>& rate) {
  settle(meanwhile);
  require_whole();
  std::unique_ptr<RunDirectory> directory;
  RunPaths paths;
  all_or_none(
      "opening a run directory",
      [&] {
        if (!is_first()) return;
        // Before the folder is this start's.
        require_same_model(RunPaths{std::filesystem::absolute(path).lexically_normal().string()});
        std::string& last = starts_[plain_folder(path)];
        directory = std::make_unique<RunDirectory>(path, /*resume=*/true, last);
        paths = directory->paths();
        last = paths.session;
        for (const std::string& folder : {paths.logs(), paths.checkpoints()}) make_folder(folder);
        write_setup(paths, *setup_);
      },
      meanwhile);
  Saved saved;
  on_ranks(
      fmt::format("saving the state of step {}", steps_),
      [&](std::size_t place) {
        RankState& its = *ranks_[place];
        const InPhase saving(its.transport->waits(), Phase::save);
        RunPaths its_paths = paths;
        if (process_) {
          Json json;
          json["root"] = paths.root;
          json["run"] = paths.run;
          json["session"] = paths.session;
          const Json heard = Json::parse(its.transport->broadcast(json.dump()));
          its_paths.root = heard.at("root").get<std::string>();
          its_paths.run = heard.at("run").get<std::string>();
          its_paths.session = heard.at("session").get<std::string>();
        }
        const std::unique_ptr<Fence> fence = directory ? nullptr : fence_of(its_paths);
        require_finite_state(*its.worker, *its.transport, steps_);
        std::string unfinished;
        Saved its_saved = save_checkpoint(*setup_, its_paths, *its.worker, *its.transport,
                                          {.step = steps_, .given_rate = rate}, unfinished);
        if (place == 0) saved = std::move(its_saved);
      },
      meanwhile);
  all_or_none(
      "closing a run directory",
      [&] {
        if (directory) check_session(paths);
        if (saved.failure) throw InputError(saved.failure->what);
        if (!directory) return;
        // Of an earlier pipeline that went further: whoever loads the directory means what was saved last.
        set_aside_later_checkpoints(paths.checkpoints(), steps_);
        beside();
      },
      meanwhile);
  return saved.folder;
}

void Session::all_or_none(const std::string& doing, const std::function<void()>& work,
                          const Meanwhile& meanwhile) {
  if (!process_) return work();
  std::exception_ptr refused;  // by all processes alike, so that none of them has failed
  on_ranks(
      doing,
      [&](std::size_t place) {
        Transport& transport = *ranks_[place]->transport;
        const InPhase saving(transport.waits(), Phase::save);
        try {
          together(transport, work);
        } catch (const TakenOverError&) {
          refused = std::current_exception();
        } catch (const PeerError&) {
          throw;
        } catch (...) {
          refused = std::current_exception();
        }
      },
      meanwhile);
  if (refused) std::rethrow_exception(refused);
}

void Session::require_same_model(const RunPaths& paths) const {
  const std::string newest = newest_checkpoint(paths.checkpoints());
  if (newest.empty() || setup_->start().checkpoint.starts_with(paths.checkpoints() + "/")) return;
  if (read_manifest(newest).model == setup_->inputs().model.fingerprint) return;
  throw InputError({paths.root, ""},
                   "holds the checkpoints of another model, and one directory is one run's: nothing was "
                   "changed; save into another");
}

std::vector<std::string> Session::gather(const std::string& mine, const Meanwhile& meanwhile) {
  settle(meanwhile);
  require_whole();
  std::vector<std::string> all{mine};
  if (!process_) return all;
  on_ranks(
      "an exchange", [&](std::size_t place) { all = ranks_[place]->transport->all_gather_text(mine); },
      meanwhile);
  return all;
}

}  // namespace stagecraft
