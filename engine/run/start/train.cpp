#include "engine/run/start/train.h"

#include "base/bounded.h"
#include "base/error.h"
#include "base/failure.h"
#include "base/files.h"
#include "base/json.h"
#include "base/torchrun_error.h"
#include "engine/device/accelerators.h"
#include "engine/run/resolve/devices.h"
#include "engine/run/resolve/launcher.h"
#include "engine/run/resolve/memory_check.h"
#include "engine/run/resolve/processes.h"
#include "engine/run/resolve/run_transport.h"
#include "engine/run/save/checkpoint_folder.h"
#include "engine/run/show/cores_note.h"
#include "engine/run/show/printing.h"
#include "engine/run/show/summary.h"
#include "engine/run/start/prepare.h"
#include "engine/run/start/rank_threads.h"
#include "engine/run/start/spares.h"
#include "engine/run/train/exit_note.h"
#include "engine/run/train/signals.h"
#include "engine/transport/factory.h"
#include "engine/transport/mpi/mpi_library.h"
#include "models/tensors/libtorch_error.h"

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <unistd.h>

namespace stagecraft {
namespace {

/// How long a rank that only learned of a failure leaves the failing one to print and end the job, and how
/// long a failed run of threads waits for those that have not failed.
constexpr Seconds kGrace{5};

/// How long a failed run takes to remove what it was writing; the next start removes the rest.
constexpr Seconds kSweepPatience{3};

void sweep_unfinished(const std::string& folder) {
  if (!folder.empty()) (void)done_within(kSweepPatience, [folder] { (void)remove_tree(folder); });
}

void announce(const Prepared& prepared, const TrainOutput& output) {
  for (const std::string& note : prepared.notes) output.note(note);
  if (output.print) output.print(start_up_tables(*prepared.setup));
}

/// Of what was said at the run's start nothing is said again.
void announce_next(const Prepared& prepared, const TrainOutput& output) {
  if (output.print) output.print(next_plan_tables(*prepared.setup));
}

/// The run had made all its steps, and may have been killed while it put things away.
void tidy_over(const Prepared& prepared, const TrainOutput& output) {
  const RunPaths& paths = prepared.directory->paths();
  (void)remove_tree(paths.live());
  for (const std::string& remark : write_missing_results(paths, *prepared.setup)) output.note(remark);
  const std::int64_t keep = prepared.setup->config().checkpoint.keep;
  for (const std::string& remark : tidy_checkpoints(paths.checkpoints(), keep, paths.run)) {
    output.note(remark);
  }
}

/// `setup`: null for a rank that failed before it had one.
ExitRecord exit_record(const RunSetup* setup, Rank rank, const std::string& doing, const Failure& failure) {
  std::vector<StageId> stages;
  if (setup != nullptr) stages = setup->placement().stages_of(rank);
  return {rank, std::move(stages), doing, failure.message, failure.code};
}

TrainResult result_without_training(const RunSetup& setup) {
  TrainResult result;
  result.run_dir = setup.config().run_dir;
  result.effective_config = json::write(setup.config());
  return result;
}

void speak(const std::exception_ptr& error, const TrainOutput& output) {
  try {
    std::rethrow_exception(error);
  } catch (...) {
    output.report_exception();
  }
}

/// Prints `error` and ends the process, whatever its other threads do.
[[noreturn]] void leave(const std::exception_ptr& error, const TrainOutput& output) {
  const int code = failure_of(error).code;
  speak(error, output);
  std::_Exit(code);
}

/// Where a signal before the first step leaves its note: known once the run directory is.
class StartUp {
 public:
  StartUp(const LaunchInfo& launch, const TrainOutput& output)
      : launch_(launch), rank_(Rank{launch.rank}), output_(output) {}

  void know(const RunPaths& paths) {
    const std::scoped_lock lock(mutex_);
    paths_ = paths;
  }
  /// Whether the caller is the one to end this process: a failing rank makes its launcher send the others
  /// signals while they hear of the failure, and only one of the two may write exit.json and speak.
  [[nodiscard]] bool claim_end() { return !ending_.exchange(true); }

  void stop(int signal) {
    if (!claim_end()) return;
    const RunPaths paths = [&] {
      const std::scoped_lock lock(mutex_);
      return paths_;
    }();
    const std::string why =
        fmt::format("stopped by {} before the first step: nothing is lost, start again with --resume",
                    sigabbrev_np(signal));
    bool first = rank_ == Rank{0};
    if (!paths.root.empty()) {
      first = leave_exit_note(paths, {rank_, {}, "start-up", why, exit_code::kStopped}).value_or(first);
    }
    leave_torchrun_error({exit_code::kStopped, why});
    // MPI's launchers end all ranks when the first one has left, so the one that speaks goes first.
    if (!first && !launch_.torch) std::this_thread::sleep_for(std::chrono::duration<double>(kGrace.value));
    leave(std::make_exception_ptr(StoppedError(first ? why : "")), output_);
  }

 private:
  const LaunchInfo& launch_;
  const Rank rank_;
  const TrainOutput& output_;
  std::mutex mutex_;
  RunPaths paths_;
  std::atomic<bool> ending_ = false;
};

/// Ranks as threads of this process.
class LocalRun {
 public:
  LocalRun(const RunSetup& setup, const RunPaths& paths, const TrainOutput& output)
      : setup_(setup),
        paths_(paths),
        output_(output),
        ranks_(make_local_ranks(setup.world(), transport_options(setup.config()))) {}

  TrainOutcome run() {
    std::vector<TrainOutcome> outcomes(ranks_.transports.size());
    for (std::size_t r = 0; r < outcomes.size(); ++r) {
      try {
        threads_.start([this, r, &outcome = outcomes[r]] { rank(Rank{r}, outcome); });
      } catch (const std::system_error& error) {
        const InputError why(fmt::format(
            "{}: its thread cannot be started: {}; the limit on processes and threads (ulimit -u, a "
            "container's pids.max) is too low for {} ranks",
            setup_.rank_name(Rank{r}), error.code().message(), outcomes.size()));
        failed(Rank{r}, {}, std::make_exception_ptr(why));
        break;
      }
    }
    const bool ended = threads_.wait(kGrace);
    const std::scoped_lock lock(mutex_);
    if (!ended) leave(error_, output_);
    sweep_unfinished(unfinished_);  // nobody writes there any more
    if (error_) std::rethrow_exception(error_);
    return std::move(outcomes[setup_.reporter().index()]);
  }

 private:
  void rank(Rank me, TrainOutcome& outcome) {
    RankPhase doing;
    doing.failed = [&](const std::exception_ptr& error) { claim(me, doing.what, error); };
    try {
      auto& transport = ranks_.transports[me.index()];
      transport->waits().enter(Phase::start_up);
      const at::Device device = prepare_device(setup_.config(), "the config", me.value);
      transport = transport_for(std::move(transport), setup_, device);
      outcome = train_rank(
          setup_, paths_, *transport, device, {output_.print, output_.draw}, doing,
          [this, me](const std::string& what, const std::exception_ptr& error) { failed(me, what, error); });
    } catch (...) {
      failed(me, doing.what, std::current_exception());
      const std::scoped_lock lock(mutex_);
      if (!doing.unfinished.empty()) unfinished_ = doing.unfinished;
    }
  }

  /// The first error is the run's.
  void claim(Rank rank, const std::string& doing, const std::exception_ptr& said) {
    const std::exception_ptr error = with_taker(said, paths_);
    {
      const std::scoped_lock lock(mutex_);
      if (error_) return;
      error_ = error;
    }
    (void)leave_exit_note(paths_, exit_record(&setup_, rank, doing, failure_of(error)));
  }

  /// May be called again for the same failure.
  void failed(Rank rank, const std::string& doing, const std::exception_ptr& error) {
    claim(rank, doing, error);  // before the others are told, so that what they throw cannot come first
    const Failure failure = failure_of(error);
    ranks_.fail(rank, fmt::format("{} failed during {}: {}", setup_.rank_name(rank), doing, failure.message));
    threads_.hurry();
  }

  const RunSetup& setup_;
  const RunPaths& paths_;
  const TrainOutput& output_;
  LocalRanks ranks_;
  RankThreads threads_;
  std::mutex mutex_;
  std::exception_ptr error_;
  std::string unfinished_;  ///< folder that the ranks were writing
};

/// Of ranks that are threads: on CPUs one process, on GPUs as many limits as there are ranks.
std::vector<ProcessMemory> memory_of_threads(const RunSetup& setup) {
  std::vector<Rank> ranks;
  for (int r = 0; r < setup.world(); ++r) ranks.emplace_back(r);
  if (setup.config().device == DeviceKind::cpu) return {process_memory(std::move(ranks))};
  std::vector<ProcessMemory> each;
  for (const Rank rank : ranks) each.push_back(process_memory(rank, device_of(setup.config(), rank.value)));
  return each;
}

void say_few_cores(const std::vector<transport::CoreCounts>& ranks, const TrainOutput& output) {
  if (const std::string note = few_cores_note(ranks); !note.empty()) output.note(note);
}

TrainResult train_locally(const TrainRequest& request, const RunConfig& config, const TrainOutput& output,
                          StartUp& start_up) {
  Prepared prepared = prepare(
      request, config, std::nullopt, [&](const RunPaths& paths) { start_up.know(paths); }, output.draw);
  TrainResult result = result_without_training(*prepared.setup);
  if (request.print_config) return result;
  announce(prepared, output);
  result.over = prepared.setup->over();
  if (request.dry_run) return result;
  if (result.over) {
    tidy_over(prepared, output);
    return result;
  }
  if (prepared.setup->config().device != DeviceKind::cpu) {
    say_few_cores({transport::count_cores()}, output);
  }
  for (result.trained = true;;) {
    check_memory(*prepared.setup, memory_of_threads(*prepared.setup));
    const RunPaths& paths = prepared.directory->paths();
    for (const std::string& remark : write_run_files(paths, *prepared.setup, prepared.profile))
      output.note(remark);
    result.outcome = LocalRun(*prepared.setup, paths, output).run();
    if (!result.outcome.next_plan) return result;
    prepared = prepare_again(request, config, std::nullopt, std::move(prepared), *result.outcome.next_plan);
    announce_next(prepared, output);
  }
}

/// This process is one rank of several.
class ProcessRun {
 public:
  ProcessRun(const TrainRequest& request, const TrainOutput& output, const LaunchInfo& launch,
             StartUp& start_up, std::unique_ptr<ProcessSession> session)
      : request_(request),
        output_(output),
        launch_(launch),
        start_up_(start_up),
        session_(std::move(session)) {}

  TrainResult run() {
    try {
      return named([] { return ""; }, [this] { return rank(); });
    } catch (...) {
      give_up(std::current_exception());
    }
  }

 private:
  TrainResult rank();
  TrainResult spare();
  /// Rank 0's: what the others need, or "" where nothing is to be trained. With `next`: for the run's next part.
  std::string prepare_run(const RunConfig& config, std::optional<Plan> next = {});
  /// From here to the run's end, or to where it goes on with another plan. `text`: what prepare_run said.
  TrainOutcome part(const std::string& text);
  /// Says whether this rank is the one that speaks, and leaves exit.json if so. `second`: it only heard of another's
  /// failure, or failed after it.
  void claim(const std::exception_ptr& error, bool second);
  [[noreturn]] void give_up(const std::exception_ptr& said);
  /// The failing rank speaks, removes `unfinished` and ends the job; another one lets it.
  [[noreturn]] void leave_job(const std::string& doing, const std::exception_ptr& error, bool first,
                              const std::string& unfinished);
  /// The same on another thread, while the rank's own hangs.
  [[noreturn]] void give_up_hanging(const std::string& doing, const std::exception_ptr& said);
  [[nodiscard]] bool heard_of_failure() const;
  void compare_fingerprints(const RunSetup& setup);
  void compare_memory(const RunSetup& setup, at::Device device);
  void compare_cores(at::Device device);

  const TrainRequest& request_;
  const TrainOutput& output_;
  const LaunchInfo& launch_;
  StartUp& start_up_;
  std::unique_ptr<ProcessSession> session_;
  std::unique_ptr<Transport> everybody_;  ///< of ranks and spares, where there are any
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<RunSetup> received_;
  Prepared prepared_;
  const RunSetup* setup_ = nullptr;
  RunPaths paths_;
  std::unique_ptr<Fence> fence_;  ///< of a rank that does not hold the directory
  RankPhase doing_;
  std::optional<bool> first_;  ///< claim()'s answer
};

TrainResult ProcessRun::rank() {
  doing_.failed = [this](const std::exception_ptr& error) { claim(error, failure_of(error).secondary); };
  const bool first = session_->rank() == Rank{0};
  RunConfig config;
  if (first) {
    config = read_run_config(request_.config, request_.overrides);
    (void)choose_backend(config.comms.backend, launch_);
  }
  const TransportOptions options = session_->share(transport_options(config));
  transport_ = session_->make_transport(options);
  transport_->waits().enter(Phase::start_up);
  if (first) require_carried(config, *transport_);
  std::string text;  // empty: nothing to train
  if (first) text = prepare_run(config);
  text = transport_->broadcast(text);
  TrainResult result;
  result.is_reporter = first;
  if (text.empty()) {
    if (!first) return result;
    result = result_without_training(*setup_);
    result.over = setup_->over();
    return result;
  }
  const int ranks = ranks_from_text(text);
  if (session_->rank().value >= ranks) return spare();
  if (ranks < session_->world()) {
    everybody_ = std::move(transport_);
    transport_ = session_->make_transport(options, ranks);
    transport_->waits().enter(Phase::start_up);
  }
  for (;;) {
    result.outcome = part(text);
    if (!result.outcome.next_plan) break;
    transport_ = session_->make_transport(options, ranks);
    transport_->waits().enter(Phase::start_up);
    text.clear();
    if (first) text = prepare_run(config, std::move(result.outcome.next_plan));
    text = transport_->broadcast(text);
  }
  TrainOutcome outcome = std::exchange(result.outcome, {});
  result = result_without_training(*setup_);
  result.outcome = std::move(outcome);
  result.is_reporter = session_->rank() == setup_->reporter();
  result.trained = true;
  if (everybody_ && first) dismiss_spares(*everybody_, ranks, result.outcome.stopped_by);
  everybody_.reset();
  return result;
}

TrainOutcome ProcessRun::part(const std::string& text) {
  if (session_->rank() != Rank{0}) {
    setup_ = nullptr;
    received_.reset();  // first: there may be no memory for two
    paths_ = paths_from_text(text);
    if (!fence_) fence_ = fence_of(paths_);
    received_ = setup_from_text(text, session_->rank());
    setup_ = received_.get();
    start_up_.know(paths_);
  }
  compare_fingerprints(*setup_);
  const at::Device device = prepare_device(setup_->config(), request_.config, launch_.machine_rank);
  compare_memory(*setup_, device);
  compare_cores(device);
  transport_ = transport_for(std::move(transport_), *setup_, device);
  const auto tell = [this, own = std::this_thread::get_id()](const std::string& what,
                                                             const std::exception_ptr& error) {
    if (std::this_thread::get_id() != own) give_up_hanging(what, error);
    give_up(error);
  };
  TrainOutcome outcome =
      train_rank(*setup_, paths_, *transport_, device, {output_.print, output_.draw}, doing_, tell);
  transport_.reset();
  return outcome;
}

TrainResult ProcessRun::spare() {
  doing_.what = "waiting as a spare";
  StopSignals::training_begins();  // a signal is for the ranks, whose end is awaited
  TrainResult result;
  result.is_reporter = false;
  result.outcome.stopped_by = await_end(*transport_);
  result.trained = true;
  transport_.reset();
  return result;
}

std::string ProcessRun::prepare_run(const RunConfig& config, std::optional<Plan> next) {
  doing_.what = "preparing the run";
  const World world{session_->world(), launch_.machine_world};
  setup_ = nullptr;
  prepared_ = next ? prepare_again(request_, config, world, std::move(prepared_), std::move(*next))
                   : prepare(
                         request_, config, world, [&](const RunPaths& paths) { start_up_.know(paths); },
                         output_.draw);
  setup_ = prepared_.setup.get();
  if (next) {
    announce_next(prepared_, output_);
  } else if (!request_.print_config) {
    announce(prepared_, output_);
    if (output_.print)
      output_.print(how_to_stop(launch_, launch_.torch ? std::nullopt : mpi_library().kill_timeout()));
  }
  output_.flush();  // the tables come before the lines of the rank that reports
  if (!prepared_.directory) return "";
  if (setup_->over()) {
    tidy_over(prepared_, output_);
    return "";
  }
  paths_ = prepared_.directory->paths();
  for (const std::string& remark : write_run_files(paths_, *setup_, prepared_.profile)) output_.note(remark);
  return setup_text(*setup_, request_.config, paths_);
}

void ProcessRun::compare_fingerprints(const RunSetup& setup) {
  const std::vector<std::string> all = transport_->all_gather_text(setup.fingerprint());
  for (std::size_t r = 1; r < all.size(); ++r) {
    if (all[r] != all.front()) {
      throw InputError(
          fmt::format("ranks do not run the same: rank 0 has {}; rank {} has {}. Every machine needs the "
                      "same build and the same data files",
                      all.front(), r, all[r]));
    }
  }
}

/// Every rank judges the same figures, so all end with the same refusal.
void ProcessRun::compare_memory(const RunSetup& setup, at::Device device) {
  std::vector<ProcessMemory> processes;
  const Rank rank = session_->rank();
  if (!device.is_cpu()) {  // all have CUDA's context there when they look
    (void)device_memory(device.index());
    transport_->barrier();
  }
  const std::string mine =
      json::write(device.is_cpu() ? process_memory({rank}) : process_memory(rank, device)).dump();
  for (const std::string& text : transport_->all_gather_text(mine)) {
    processes.push_back(json::read<ProcessMemory>(Json::parse(text), {"a rank's memory", ""}));
  }
  check_memory(setup, processes);
}

void ProcessRun::compare_cores(at::Device device) {
  if (device.is_cpu()) return;  // one core per rank is what such a run wants
  std::vector<transport::CoreCounts> ranks;
  for (const std::string& text : transport_->all_gather_text(cores_text(transport::count_cores()))) {
    ranks.push_back(cores_from_text(text));
  }
  if (session_->rank() == Rank{0}) say_few_cores(ranks, output_);
}

void ProcessRun::claim(const std::exception_ptr& error, bool second) {
  if (first_) return;
  while (!start_up_.claim_end()) ::pause();  // a signal came first, and its thread ends the process
  const Failure failure = failure_of(error);
  const Rank rank = session_->rank();
  // A rank that only heard of a failure, or that failed second, lets the first one speak and end the job.
  bool first = rank == Rank{0} || !second;
  if (!paths_.root.empty()) {
    first = leave_exit_note(paths_, exit_record(setup_, rank, doing_.what, failure)).value_or(first);
  }
  first_ = first;
}

void ProcessRun::give_up(const std::exception_ptr& said) {
  const std::exception_ptr error = with_taker(said, paths_);
  const Failure failure = failure_of(error);
  if (!first_) claim(error, failure.secondary || heard_of_failure());
  const Rank rank = session_->rank();
  const bool first = *first_;
  for (const auto& transport : {&transport_, &everybody_}) {
    if (!*transport) continue;
    (*transport)->fail(fmt::format("rank {} failed during {}: {}", rank.value, doing_.what, failure.message));
  }
  leave_job(doing_.what, error, first, doing_.unfinished);
}

void ProcessRun::leave_job(const std::string& doing, const std::exception_ptr& error, bool first,
                           const std::string& unfinished) {
  Failure failure = failure_of(error);
  const int code = failure.code;
  if (!failure.message.empty()) {
    const Rank rank = session_->rank();
    const std::string name = setup_ != nullptr ? setup_->rank_name(rank) : fmt::format("rank {}", rank.value);
    failure.message = fmt::format("{}, {}: {}", name, doing, failure.message);
  }
  failure.secondary = !first;
  leave_torchrun_error(failure);
  if (first) {
    speak(error, output_);
    sweep_unfinished(unfinished);
  } else if (session_->ends_others()) {
    std::this_thread::sleep_for(std::chrono::duration<double>(kGrace.value));
  }
  session_->abort(code);
}

void ProcessRun::give_up_hanging(const std::string& doing, const std::exception_ptr& said) {
  const std::exception_ptr error = with_taker(said, paths_);
  while (!start_up_.claim_end()) ::pause();
  const Failure failure = failure_of(error);
  const bool first =
      leave_exit_note(paths_, exit_record(setup_, session_->rank(), doing, failure)).value_or(true);
  // The rank's own thread sits in a call that never returns, and in no call of MPI.
  leave_job(doing, error, first, "");
}

bool ProcessRun::heard_of_failure() const {
  try {
    if (transport_) {
      transport_->set_background(nullptr);
      transport_->progress();
    }
    return false;
  } catch (...) {
    return true;
  }
}

}  // namespace

TrainResult train(const TrainRequest& request, const TrainOutput& output) {
  prepare_environment();
  const LaunchInfo launch = detect_launch();
  const Together together{request.process_group, "train"};
  require_connectable(launch, together);
  StartUp start_up(launch, output);
  const StopSignals signals([&](int signal) { start_up.stop(signal); });
  const auto run_with_others = [&] {
    return ProcessRun(request, output, launch, start_up, connect_processes(launch, together)).run();
  };
  if (launch.world > 1) return run_with_others();
  const RunConfig config = read_run_config(request.config, request.overrides);
  if (choose_backend(config.comms.backend, launch) != Backend::local) return run_with_others();
  return named([] { return ""; }, [&] { return train_locally(request, config, output, start_up); });
}

}  // namespace stagecraft
