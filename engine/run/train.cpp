#include "engine/run/train.h"

#include "engine/run/checkpoint_folder.h"
#include "engine/run/devices.h"
#include "engine/run/launcher.h"
#include "engine/run/memory_check.h"
#include "engine/run/prepare.h"
#include "engine/run/printing.h"
#include "engine/run/signals.h"
#include "engine/transport/factory.h"
#include "models/libtorch_error.h"
#include "schedules/base/failure.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <mutex>
#include <thread>

namespace stagecraft {
namespace {

/// How long a rank that only learned of a failure leaves the failing one to print and end the job.
constexpr std::chrono::seconds kGrace{5};

TransportOptions transport_options(const RunConfig& config) {
  const CommsConfig& comms = config.comms;
  return {.timeout = Seconds{comms.timeout_s},
          .synchronous_sends = comms.synchronous_sends,
          .start_up_timeout = Seconds{comms.start_up_timeout_s},
          .save_timeout = Seconds{comms.save_timeout_s}};
}

void announce(const Prepared& prepared, const TrainVoice& voice) {
  for (const std::string& note : prepared.notes) voice.note(note);
  if (voice.print) voice.print(start_up_tables(*prepared.setup));
}

/// The run had made all its steps, and may have been killed while it put things away.
void tidy_over(const Prepared& prepared, const TrainVoice& voice) {
  const std::int64_t keep = prepared.setup->config().checkpoint.keep;
  for (const std::string& remark : tidy_checkpoints(prepared.directory->paths().checkpoints(), keep)) {
    voice.note(remark);
  }
}

/// `setup`: null for a rank that failed before it had one.
ExitRecord exit_record(const RunSetup* setup, Rank rank, const Doing& doing, const Failure& failure) {
  std::vector<StageId> stages;
  if (setup != nullptr) stages = setup->placement().stages_of(rank);
  return {rank, std::move(stages), doing.what, failure.message, failure.code};
}

TrainResult result_without_training(const RunSetup& setup) {
  TrainResult result;
  result.run_dir = setup.config().run_dir;
  result.effective_config = json::write(setup.config());
  return result;
}

/// Ranks as threads of this process.
class LocalRun {
 public:
  LocalRun(const RunSetup& setup, const RunPaths& paths, const Print& print)
      : setup_(setup), paths_(paths), print_(print) {}

  TrainOutcome run() {
    auto transports = make_local_transports(setup_.world(), transport_options(setup_.config()));
    std::vector<TrainOutcome> outcomes(transports.size());
    {
      std::vector<std::jthread> threads;
      for (std::size_t r = 0; r < transports.size(); ++r) {
        threads.emplace_back(
            [this, &transport = transports[r], &outcome = outcomes[r]] { rank(transport, outcome); });
      }
    }
    if (error_) std::rethrow_exception(error_);
    return std::move(outcomes[setup_.reporter().index()]);
  }

 private:
  void rank(std::unique_ptr<Transport>& transport, TrainOutcome& outcome) {
    const Rank me = transport->rank();
    Doing doing;
    try {
      transport->waits().enter(Phase::start_up);
      const at::Device device = prepare_device(setup_.config(), "the config", me.value);
      transport = transport_for(std::move(transport), setup_, device);
      outcome = train_rank(setup_, paths_, *transport, device, print_, doing);
    } catch (...) {
      const Failure failure = failure_of(std::current_exception());
      {
        // Before the others are told, so that what they throw cannot come first.
        const std::scoped_lock lock(mutex_);
        const bool first = !error_;
        if (first) error_ = std::current_exception();
        if (first) (void)record_exit(paths_, exit_record(&setup_, me, doing, failure));
      }
      if (!transport) return;  // it could not be made: the others wait for a collective until their timeout
      transport->fail(
          fmt::format("{} failed during {}: {}", setup_.rank_name(me), doing.what, failure.message));
    }
  }

  const RunSetup& setup_;
  const RunPaths& paths_;
  const Print& print_;
  std::mutex mutex_;
  std::exception_ptr error_;
};

TrainResult train_locally(const TrainRequest& request, RunConfig config, const TrainVoice& voice) {
  Prepared prepared = prepare(request, std::move(config), std::nullopt);
  TrainResult result = result_without_training(*prepared.setup);
  if (request.print_config) return result;
  announce(prepared, voice);
  result.over = prepared.setup->over();
  if (request.dry_run) return result;
  if (result.over) {
    tidy_over(prepared, voice);
    return result;
  }
  std::vector<Rank> ranks;
  for (int r = 0; r < prepared.setup->world(); ++r) ranks.emplace_back(r);
  check_memory(*prepared.setup, {process_memory(std::move(ranks))});
  const RunPaths& paths = prepared.directory->paths();
  for (const std::string& remark : write_run_files(paths, *prepared.setup)) voice.note(remark);
  const StopSignals signals;
  result.outcome = LocalRun(*prepared.setup, paths, voice.print).run();
  result.trained = true;
  return result;
}

/// check_world, said once: each process is alone and has the same to say.
void refuse_copies(const Launch& launch, int mpi_world) {
  try {
    check_world(launch, mpi_world);
  } catch (const InputError&) {
    if (launch.rank == 0) throw;
    throw InputError("");
  }
}

/// This process is one rank of several.
class MpiRun {
 public:
  MpiRun(const TrainRequest& request, const TrainVoice& voice, const Launch& launch)
      : request_(request), voice_(voice), launch_(launch) {}

  TrainResult run() {
    refuse_copies(launch_, session_.world());
    const StopSignals signals;
    try {
      return named([] { return ""; }, [this] { return rank(); });
    } catch (...) {
      give_up();
    }
  }

 private:
  TrainResult rank();
  /// Rank 0's: what the others need, or "" where nothing is to be trained.
  std::string prepare_run(RunConfig config);
  [[noreturn]] void give_up();
  void compare_fingerprints(const RunSetup& setup);
  void compare_memory(const RunSetup& setup);

  const TrainRequest& request_;
  const TrainVoice& voice_;
  const Launch& launch_;
  MpiSession session_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<RunSetup> received_;
  Prepared prepared_;
  const RunSetup* setup_ = nullptr;
  RunPaths paths_;
  Doing doing_;
};

TrainResult MpiRun::rank() {
  const bool first = session_.rank() == Rank{0};
  RunConfig config;
  if (first) {
    config = read_run_config(request_.config, request_.overrides);
    (void)choose_backend(config.comms.backend, launch_);
  }
  transport_ = make_mpi_transport(session_, session_.share(transport_options(config)));
  transport_->waits().enter(Phase::start_up);
  std::string text;  // empty: nothing to train
  if (first) text = prepare_run(std::move(config));
  text = transport_->broadcast(text);
  TrainResult result;
  result.speaks = first;
  if (text.empty()) {
    if (!first) return result;
    result = result_without_training(*setup_);
    result.over = setup_->over();
    return result;
  }
  if (!first) {
    paths_ = paths_from_text(text);
    received_ = setup_from_text(text, session_.rank());
    setup_ = received_.get();
  }
  compare_fingerprints(*setup_);
  compare_memory(*setup_);
  result = result_without_training(*setup_);
  const at::Device device = prepare_device(setup_->config(), request_.config, launch_.machine_rank);
  transport_ = transport_for(std::move(transport_), *setup_, device);
  result.outcome = train_rank(*setup_, paths_, *transport_, device, voice_.print, doing_);
  result.speaks = session_.rank() == setup_->reporter();
  result.trained = true;
  transport_.reset();
  return result;
}

std::string MpiRun::prepare_run(RunConfig config) {
  doing_.what = "preparing the run";
  prepared_ = prepare(request_, std::move(config), World{session_.world(), launch_.machine_world});
  setup_ = prepared_.setup.get();
  if (!request_.print_config) announce(prepared_, voice_);
  std::fflush(stdout);
  if (!prepared_.directory) return "";
  if (setup_->over()) {
    tidy_over(prepared_, voice_);
    return "";
  }
  paths_ = prepared_.directory->paths();
  for (const std::string& remark : write_run_files(paths_, *setup_)) voice_.note(remark);
  return setup_text(*setup_, request_.config, paths_.root);
}

void MpiRun::compare_fingerprints(const RunSetup& setup) {
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
void MpiRun::compare_memory(const RunSetup& setup) {
  std::vector<ProcessMemory> processes;
  const std::string mine = json::write(process_memory({session_.rank()})).dump();
  for (const std::string& text : transport_->all_gather_text(mine)) {
    processes.push_back(json::read<ProcessMemory>(Json::parse(text), {"a rank's memory", ""}));
  }
  check_memory(setup, processes);
}

void MpiRun::give_up() {
  const Failure failure = failure_of(std::current_exception());
  const Rank rank = session_.rank();
  // A rank that only heard of a failure, or that failed second, lets the first one speak and end the job.
  bool first = rank == Rank{0} || !failure.secondary;
  if (!paths_.root.empty()) {
    first = record_exit(paths_, exit_record(setup_, rank, doing_, failure));
  }
  if (first) voice_.report_exception();
  if (transport_) {
    transport_->fail(fmt::format("rank {} failed during {}: {}", rank.value, doing_.what, failure.message));
  }
  std::fflush(stdout);
  if (!first) std::this_thread::sleep_for(kGrace);
  session_.abort(failure.code);
}

}  // namespace

TrainResult train(const TrainRequest& request, const TrainVoice& voice) {
  const Launch launch = detect_launch();
  if (!launch.connectable) refuse_copies(launch, 1);
  if (launch.world > 1) return MpiRun(request, voice, launch).run();
  RunConfig config = read_run_config(request.config, request.overrides);
  if (choose_backend(config.comms.backend, launch) == Backend::mpi)
    return MpiRun(request, voice, launch).run();
  return named([] { return ""; }, [&] { return train_locally(request, std::move(config), voice); });
}

}  // namespace stagecraft
