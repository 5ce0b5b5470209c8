#include "engine/run/train/trainer.h"

#include "base/bounded.h"
#include "base/error.h"
#include "base/failure.h"
#include "base/files.h"
#include "base/json.h"
#include "base/table.h"
#include "base/text.h"
#include "engine/records/report/report.h"
#include "engine/run/resolve/worker_options.h"
#include "engine/run/save/background_save.h"
#include "engine/run/save/checkpoint.h"
#include "engine/run/save/checkpoint_folder.h"
#include "engine/run/save/finite_state.h"
#include "engine/run/save/last_state.h"
#include "engine/run/save/saving_probe.h"
#include "engine/run/show/clock_meetings.h"
#include "engine/run/show/live_record.h"
#include "engine/run/show/summary.h"
#include "engine/run/train/exit_note.h"
#include "engine/run/train/last_words.h"
#include "engine/run/train/log_file.h"
#include "engine/run/train/rehearsal.h"
#include "engine/run/train/signals.h"
#include "engine/run/train/watchdog.h"
#include "engine/transport/cores.h"
#include "models/tensors/libtorch_error.h"
#include "schedules/interchange/chrome_trace.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <spdlog/logger.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <thread>

namespace stagecraft {
namespace {

using Clock = std::chrono::steady_clock;

/// Behind the start, where everybody loads and allocates.
constexpr std::chrono::seconds kSettled{10};

spdlog::level::level_enum log_level(LogLevel level) {
  switch (level) {
    case LogLevel::debug:
      return spdlog::level::debug;
    case LogLevel::info:
      return spdlog::level::info;
    case LogLevel::warning:
      return spdlog::level::warn;
    case LogLevel::error:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

/// While it lives and `what` takes more than twice `bound`, which the config's `key` says, the run ends: this rank's
/// own reading or writing hangs, so that it waits for nobody.
std::unique_ptr<Overdue> watch_disk(const RunSetup& setup, const RunPaths& paths, Transport& transport,
                                    Seconds bound, const char* key, const std::string& what,
                                    const TellFailure& tell) {
  const Seconds limit = bound * 2;
  return std::make_unique<Overdue>(limit, [=, name = setup.rank_name(transport.rank()), root = paths.root] {
    tell(what,
         std::make_exception_ptr(PeerError(fmt::format(
             "{}: {} is not over after {:.1f} s (twice comms.{}): the disk of {} hangs, or is slower than "
             "that allows",
             name, what, limit.value, key, root))));
  });
}

/// For as long as a rank waits for another in this phase.
std::unique_ptr<Overdue> watch_disk(const RunSetup& setup, const RunPaths& paths, Transport& transport,
                                    const std::string& what, const TellFailure& tell) {
  const char* const key = transport.waits().phase() == Phase::save ? "save_timeout_s" : "start_up_timeout_s";
  return watch_disk(setup, paths, transport, transport.waits().bound(), key, what, tell);
}

/// With what a step is left that takes too long after a SIGTERM. Validations end by themselves (Worker::run).
WorkerOptions leaving_for_term(WorkerOptions options, Seconds bound) {
  options.before_action = [bound] {
    if (StopSignals::since_term() <= bound) return;
    throw StoppedError(fmt::format(
        "stopped by TERM: what was begun was not over {:g} s later (comms.stop_timeout_s)", bound.value));
  };
  return options;
}

class Trainer final : public FailedTrainer {
 public:
  Trainer(const RunSetup& setup, const RunPaths& paths, Transport& transport, at::Device device,
          const Screen& screen, RankPhase& doing, TellFailure tell, std::shared_ptr<spdlog::logger> log,
          std::unique_ptr<Overdue> starting)
      : setup_(setup),
        paths_(paths),
        transport_(transport),
        doing_(doing),
        tell_(std::move(tell)),
        starting_(std::move(starting)),
        print_(screen.print),
        log_(std::move(log)),
        worker_(
            setup.inputs().model, *setup.inputs().loss, *setup.inputs().data, setup.layers_of_stages(),
            setup.placement(), transport,
            leaving_for_term(worker_options(setup, device), Seconds{setup.config().comms.stop_timeout_s})) {
    on_device_ = !device.is_cpu();
    if (transport.rank() != setup.reporter()) return;
    reporter_.emplace(setup, paths.metrics(), screen);
    if (print_ && !device.is_cpu())
      print_(fmt::format("computing on {}, tensors travel over {}\n", device.str(), transport.name()));
  }

  TrainOutcome run() {
    transport_.waits().on_long_wait([this](const std::string& what) { log_->warn(what); });
    start();
    transport_.waits().enter(Phase::step);
    if (on_device_ || setup_.world() == 1)
      watch_host();  // of several ranks on CPUs the others miss one that hangs
    SegmentWalk walk(setup_.shape());
    Segment segment;
    for (bool more = walk.next(segment); more;) {
      Segment next;
      more = walk.next(next);
      // No rank waits here for those that are behind: each brings its signal to the step, hears behind it what the
      // others brought, and goes on. All have begun the step when one has ended it.
      const bool goes_on = more && setup_.programs().follow(segment, next);
      if (goes_on) ask_for_signal();
      const bool whole = carry_out(segment, more ? &next : nullptr);
      const bool trained = segment.kind == SegmentKind::train;
      int signal = goes_on ? heard_signal() : agreed_signal();
      if (trained) show_live(segment.first_step);
      if (nobody_writes_ && background_.begun()) background_.hand_over(transport_);
      const bool due = trained && (segment.checkpoint_after || !more);
      if (background_.begun() && (due || signal != 0)) end_background_save();
      const bool goes_on_training = more && next.kind == segment.kind;
      if (due && whole && signal == 0 && more) outcome_.next_plan = agreed_plan();
      const bool in_background = setup_.config().checkpoint.in_background && !outcome_.next_plan;
      if (due && whole && signal == 0 && goes_on_training && in_background) {
        begin_background_save();
      } else if (due || (signal != 0 && outcome_.steps != saved_step_)) {
        const Saved saved = save(!whole || (trained && more && next.kind == SegmentKind::validate));
        // What came during the save does not wait for another segment: everything is on disk.
        signal = agreed_signal();
        if (saved.failure) {
          outcome_.next_plan.reset();
          go_on_without(*saved.failure, /*last=*/!more || signal != 0);
        }
      } else if (whole && !trained && outcome_.steps == saved_step_ && reporter_) {
        note_validation_made();
      }
      // With nothing left to do there is nothing to stop.
      if (signal != 0 && (more || !whole)) {
        outcome_.stopped_by = signal;
        outcome_.next_plan.reset();
        break;
      }
      if (outcome_.next_plan) break;  // everything is on disk
      segment = std::move(next);
    }
    finish();
    return std::move(outcome_);
  }

  [[nodiscard]] std::string save_last_state(Transport& meeting, bool not_finite) override;
  [[nodiscard]] bool in_segment() const override { return in_segment_; }
  [[nodiscard]] const std::string& last_checkpoint() const override { return outcome_.last_checkpoint; }

 private:
  void start();
  /// Reads ahead for the next segment, if any. False: a validation that a signal cut short, which a resumed run
  /// makes again from its beginning.
  [[nodiscard]] bool carry_out(const Segment& segment, const Segment* next);
  Saved save(bool validation_owed);
  /// The state of now, which is this session's to save, and finite. Collective.
  [[nodiscard]] SaveRequest state_to_save(bool validation_owed);
  /// With the steps that follow. No validation does, which a resumed run would owe.
  void begin_background_save();
  /// Waits for it.
  void end_background_save();
  /// A checkpoint that is in its place.
  void take_saved(const Saved& saved, std::int64_t step);
  /// Behind a checkpoint that could not be written. Throws TakenOverError where that is why, and InputError, on the rank whose write failed, and PeerError on
  /// the others, where the run must not go on. `last`: there is no next one.
  void warn(const std::string& text);
  void go_on_without(const Saved::Failure& failure, bool last) {
    go_on_without(failure, last, outcome_.steps);
  }
  void go_on_without(const Saved::Failure& failure, bool last, std::int64_t step);
  /// Where its line or its note cannot be written, a resumed run makes the validation again.
  void note_validation_made();
  void finish();
  void tell_of_graphs();
  void rehearse();
  void watch_host();
  /// Behind the steps from `before` on, at the end of which all ranks heard whether one wants records.
  void show_live(std::int64_t before) {
    live_.steps_made(before, outcome_.steps, records_wanted_, worker_, meetings_);
    if (const std::string news = live_.news(); !news.empty()) warn(news);
  }
  /// Puts the machines' clocks beside each other. Collective.
  void meet() {
    if (several_machines_) meetings_.meet(transport_);
  }
  /// Launchers may give their own exit code for a run that was stopped: exit.json says the run's.
  void leave_stop_note() const;
  /// The plan that the run should go on with, if any. Collective: ranks wait for each other here, so this is asked
  /// at checkpoints alone, and where the config allows another plan.
  [[nodiscard]] std::optional<Plan> agreed_plan();
  /// Brings the signal that this rank got, if any, to the others, whether it still writes a checkpoint, and whether it
  /// wants live records: they hear the greatest number. So where one still writes, only such a one's wish is heard; all
  /// have it at about the same time.
  void ask_for_signal() {
    transport_.begin_agreement(StopSignals::received() * kSignals +
                               (background_.writing() ? kStillWrites : 0) +
                               (live_.is_wanted() ? kWantsRecords : 0));
  }
  /// What the others brought: the signal that any rank got, 0 if none did.
  [[nodiscard]] int heard_signal() {
    const int heard = transport_.finish_agreement();
    nobody_writes_ = heard < kStillWrites;
    records_wanted_ = heard % kStillWrites == kWantsRecords;
    return heard / kSignals;
  }
  /// The same at once, where all ranks wait for each other.
  [[nodiscard]] int agreed_signal() {
    ask_for_signal();
    return heard_signal();
  }

  const RunSetup& setup_;
  const RunPaths& paths_;
  Transport& transport_;
  RankPhase& doing_;
  TellFailure tell_;
  std::unique_ptr<Overdue> starting_;  ///< until the first step
  Print print_;                        ///< empty: no one listens
  std::shared_ptr<spdlog::logger> log_;
  Worker worker_;
  std::optional<Watchdog> watchdog_;  ///< of a device's host, or of a rank alone, in steps and validations
  std::optional<RunReporter> reporter_;
  TrainOutcome outcome_;
  bool in_segment_ = false;
  bool on_device_ = false;
  /// The step after which the segment validates, or the one that follows; -1: neither does.
  std::int64_t validation_after_ = -1;
  std::int64_t saved_step_ = -1;
  /// What ranks bring beside a step, in one number.
  static constexpr int kWantsRecords = 1, kStillWrites = 2, kSignals = 4;
  BackgroundSave background_{setup_, paths_};
  bool nobody_writes_ = false, records_wanted_ = false;  ///< as all ranks last heard
  bool several_machines_ = false;
  ClockMeetings meetings_;  ///< of several machines' clocks
  LiveRecord live_{setup_, paths_, transport_.rank()};
  const Clock::time_point started_ = Clock::now();
  Seconds start_took_;  ///< until the first step
  bool told_core_share_ = false;
};

void Trainer::watch_host() {
  Waits& waits = transport_.waits();
  watchdog_.emplace(
      waits.pulse(), waits.bound(),
      [this, name = setup_.rank_name(transport_.rank())](const std::string& what) {
        const char* const device =
            on_device_ ? "its device waits for something that does not come, the driver hangs, or " : "";
        tell_("a step", std::make_exception_ptr(
                            PeerError(fmt::format("{}: {}: {}a disk hangs, the data's or that of {} "
                                                  "(comms.timeout_s)",
                                                  name, what, device, paths_.root))));
      });
}

/// Before the state of a checkpoint is there, which is none of a rehearsal's business.
void Trainer::rehearse() {
  doing_.what = "the rehearsal of its steps";
  const auto begin = std::chrono::steady_clock::now();
  const Rehearsal rehearsal(setup_, transport_.rank());
  const std::string why = worker_.rehearse(rehearsal.segments());
  const Seconds took{std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count()};
  log_->info("rehearsed in {}", format_duration(took));
  if (!why.empty()) {
    log_->warn("the rehearsal ended early, so the first steps load and allocate what they need: {}", why);
  }
}

void Trainer::start() {
  if (on_device_) rehearse();
  if (const auto& predicted = setup_.plan().predicted) transport_.waits().expect_step(predicted->step);
  const StartPoint& start = setup_.start();
  const Model& model = setup_.inputs().model;
  outcome_.steps = start.step;
  log_->info("{} of {} over {}, {} threads", setup_.rank_name(transport_.rank()), setup_.world(),
             transport_.name(), setup_.config().threads_per_rank);
  if (!start.checkpoint.empty()) {
    doing_.what = "loading " + start.checkpoint;
    load_checkpoint(start.checkpoint, model, *setup_.inputs().optimizer, worker_);
    require_finite_load(worker_, transport_, start.checkpoint);
    log_->info("state of step {} from {}", start.step, start.checkpoint);
    saved_step_ = start.step;
    outcome_.last_checkpoint = start.checkpoint;
  } else if (const auto& initial = setup_.config().initial_checkpoint) {
    doing_.what = "loading " + *initial;
    load_weights(*initial, model, worker_);
    require_finite_load(worker_, transport_, *initial);
    log_->info("weights from {}", *initial);
  }
  if (setup_.config().checkpoint.at_start && start.checkpoint.empty()) {
    if (const Saved saved = save(false); saved.failure) go_on_without(*saved.failure, /*last=*/false);
  }
  transport_.barrier();
  starting_.reset();
  StopSignals::training_begins();
  const std::vector<std::string> machines = transport_.all_gather_text(transport::boot_id());
  several_machines_ = std::any_of(machines.begin(), machines.end(),
                                  [&](const std::string& machine) { return machine != machines.front(); });
  meet();
  start_took_ = Seconds{std::chrono::duration<double>(Clock::now() - started_).count()};
  if (reporter_) reporter_->restart_clock();
}

bool Trainer::carry_out(const Segment& segment, const Segment* next) {
  const bool train = segment.kind == SegmentKind::train;
  const auto groups = static_cast<std::int64_t>(segment.group_sizes.size());
  doing_.what = !train ? fmt::format("validation after step {}", segment.first_step)
                : groups == 1
                    ? fmt::format("step {}", segment.first_step + 1)
                    : fmt::format("steps {} to {}", segment.first_step + 1, segment.first_step + groups);
  log_->debug("{}: {} micro-batches", doing_.what, segment.micro_batches.size());
  if (reporter_ && !train) reporter_->restart_clock();
  in_segment_ = true;
  const bool validation_next = train && next != nullptr && next->kind == SegmentKind::validate;
  validation_after_ = !train ? segment.first_step : validation_next ? segment.first_step + groups : -1;
  const Rank me = transport_.rank();
  const RankProgramPtr& program = setup_.programs().of(segment, me);
  worker_.read_ahead(program, segment);
  // Not from training to validation and back: the memory proof counts what one of them reads ahead.
  if (next != nullptr && next->kind == segment.kind)
    worker_.read_ahead(setup_.programs().of(*next, me), *next);
  // Called now or, on a device, when the next segment runs.
  const auto report = [this, train, steps = segment.first_step](const StepReport& step) {
    if (!reporter_) return;
    if (train) {
      reporter_->step(step);
    } else {
      reporter_->validation(step, steps);
    }
  };
  const std::function<bool()> asked = [] { return StopSignals::received() != 0; };
  bool whole = false;
  const Clock::time_point begun = Clock::now();
  const Watched watched(watchdog_ ? &*watchdog_ : nullptr);
  whole = worker_.run(program, segment, report, train ? std::function<bool()>() : asked);
  if (next == nullptr || next->kind != segment.kind) worker_.settle();
  if (!whole) log_->info("{}: left for a signal, to be made again", doing_.what);
  in_segment_ = false;
  if (!train) return whole;
  const Seconds took{std::chrono::duration<double>(Clock::now() - begun).count()};
  transport_.waits().step_took(took / static_cast<double>(groups));
  if (reporter_ && outcome_.steps == setup_.start().step) remove_results(paths_);
  outcome_.steps = segment.first_step + groups;
  if (reporter_ && !told_core_share_ && Clock::now() - started_ > kSettled) {
    told_core_share_ = true;
    // The others' come at the end, and what disturbs one disturbs most.
    std::vector<double> shares(static_cast<std::size_t>(setup_.world()));
    shares[transport_.rank().index()] = worker_.core_share().value_or(0);
    if (const std::string note = shared_cores(shares); !note.empty()) warn(note);
  }
  return true;
}

Saved Trainer::save(bool validation_owed) {
  doing_.what = fmt::format("checkpoint after step {}", outcome_.steps);
  worker_.settle();
  const InPhase saving(transport_.waits(), Phase::save);
  const auto watch = watch_disk(setup_, paths_, transport_, doing_.what, tell_);
  Saved saved =
      save_checkpoint(setup_, paths_, worker_, transport_, state_to_save(validation_owed), doing_.unfinished);
  meet();
  take_saved(saved, outcome_.steps);
  if (reporter_) reporter_->restart_clock();
  return saved;
}

SaveRequest Trainer::state_to_save(bool validation_owed) {
  check_session(paths_);
  require_finite_state(worker_, transport_, outcome_.steps);
  const auto sync_history = [this] {
    if (reporter_) reporter_->sync();
  };
  return {.step = outcome_.steps, .validation_owed = validation_owed, .first = sync_history};
}

void Trainer::take_saved(const Saved& saved, std::int64_t step) {
  for (const std::string& note : saved.notes) log_->warn("{}", note);
  if (saved.failure) return;
  outcome_.last_checkpoint = saved.folder;
  saved_step_ = step;
  log_->info("{} written", outcome_.last_checkpoint);
}

void Trainer::begin_background_save() {
  doing_.what = fmt::format("copying the state after step {}", outcome_.steps);
  worker_.settle();
  const InPhase saving(transport_.waits(), Phase::save);
  const auto watch = watch_disk(setup_, paths_, transport_, doing_.what, tell_);
  const Saved saved = background_.begin(worker_, transport_, state_to_save(/*validation_owed=*/false));
  for (const std::string& note : saved.notes) log_->warn("{}", note);
  if (saved.failure) go_on_without(*saved.failure, /*last=*/false);
}

void Trainer::end_background_save() {
  doing_.what = fmt::format("checkpoint after step {}", background_.step());
  const InPhase saving(transport_.waits(), Phase::save);
  const auto watch = watch_disk(setup_, paths_, transport_, doing_.what, tell_);
  const std::int64_t step = background_.step();
  const Saved saved = background_.finish(transport_);
  take_saved(saved, step);
  if (saved.failure) go_on_without(*saved.failure, /*last=*/false, step);
}

void Trainer::go_on_without(const Saved::Failure& failure, bool last, std::int64_t step) {
  check_session(paths_);
  if (last || setup_.config().checkpoint.on_failure == OnFailedSave::stop) {
    if (transport_.rank() == failure.rank) throw InputError(failure.what);
    transport_.barrier();  // hears it from there
  }
  const std::string text = fmt::format(
      "The checkpoint after step {} could not be written: {}. The run goes on, and tries again at the next "
      "one; {}",
      step, failure.what,
      saved_step_ < 0 ? "there is none so far" : fmt::format("the newest is that of step {}", saved_step_));
  warn(text);
}

/// In the rank's log, and for people.
void Trainer::warn(const std::string& text) {
  log_->warn("{}", text);
  if (reporter_) reporter_->show(text);
}

void Trainer::note_validation_made() {
  const auto watch =
      watch_disk(setup_, paths_, transport_, Seconds{setup_.config().comms.save_timeout_s}, "save_timeout_s",
                 fmt::format("noting the validation after step {}", outcome_.steps), tell_);
  try {
    reporter_->sync();  // before the manifest says that it was made
    note_validation(outcome_.last_checkpoint);
  } catch (const InputError& error) {
    if (setup_.config().checkpoint.on_failure == OnFailedSave::stop) throw;
    log_->warn("the validation after step {} is not noted: {}", outcome_.steps, error.what());
  }
}

std::string Trainer::save_last_state(Transport& meeting, bool not_finite) {
  background_.abandon();
  // A step's report may fail when the step is made, before the validation that follows it.
  const std::optional<std::int64_t> step = worker_.whole_state();
  LastState state{.step = step,
                  .validation_owed = step == validation_after_,
                  .saved = saved_step_,
                  .checkpoint = outcome_.last_checkpoint};
  // Numbers that came out of a step behind its update: the update was made of them.
  if (not_finite && state.step && *state.step != outcome_.steps) state.step.reset();
  // History reaches as far as state: there may have been no memory for the step's report.
  if (reporter_ && state.step && reporter_->noted_step() < *state.step) state.step.reset();
  if (reporter_) reporter_->sync();
  const auto watch = watch_disk(setup_, paths_, meeting, meeting_options(setup_.config()).save_timeout,
                                "save_timeout_s", "saving what can be saved", tell_);
  LastSave saved = stagecraft::save_last_state(setup_, paths_, worker_, meeting, state, doing_.unfinished);
  outcome_.last_checkpoint = std::move(saved.checkpoint);
  return std::move(saved.words);
}

void Trainer::tell_of_graphs() {
  const GraphCounts counts = worker_.graph_counts();
  if (!counts.refusal.empty()) log_->warn("CUDA graphs are not used: {}", counts.refusal);
  if (counts.recorded > 0) {
    log_->info("CUDA graphs: {} recorded, started {} times", counts.recorded, counts.repeated);
  }
  if (counts.crowded > 0) {
    log_->warn("CUDA graphs: {} ran as they are, since there were as many recordings as a stage keeps",
               plural(counts.crowded, "micro-batch"));
  }
  if (!reporter_ || !print_) return;
  if (!counts.refusal.empty()) {
    print_(fmt::format("CUDA graphs were not used (cuda.graphs): {}\n", counts.refusal));
  } else if (counts.recorded > 0) {
    print_(fmt::format("{} CUDA graphs, started {} times (rank {})\n", counts.recorded, counts.repeated,
                       transport_.rank().value));
  }
}

std::optional<Plan> Trainer::agreed_plan() {
  if (!setup_.config().replan.when) return std::nullopt;
  std::string mine;
  if (const auto& better = live_.better_plan()) {
    const Seconds saved = better->gain * static_cast<double>(*setup_.config().train_steps - outcome_.steps);
    if (saved > start_took_) mine = json::write(better->plan).dump();
  }
  for (const std::string& text : transport_.all_gather_text(mine)) {
    if (!text.empty()) return json::read<Plan>(Json::parse(text), {"the next plan", ""});
  }
  return std::nullopt;
}

void Trainer::leave_stop_note() const {
  if (outcome_.stopped_by == 0) return;
  const Rank rank = transport_.rank();
  (void)leave_exit_note(paths_, {rank, setup_.placement().stages_of(rank),
                                 fmt::format("stopping after step {}", outcome_.steps),
                                 stopped_text(outcome_), exit_code::kStopped});
}

void Trainer::finish() {
  doing_.what = "the end";
  worker_.settle();
  if (reporter_) reporter_->finish();
  tell_of_graphs();
  const InPhase saving(transport_.waits(), Phase::save);
  const auto watch = watch_disk(setup_, paths_, transport_, doing_.what, tell_);
  meet();
  const RunResults results = gather_results(setup_, worker_, transport_, meetings_);
  live_.finish(worker_);
  if (reporter_) {
    reporter_->sync();
    const std::int64_t before = setup_.start().step;
    const bool keeps = outcome_.steps == before && before > 0;  // no step, a validation that was owed at most
    if (keeps) {
      outcome_.summary = earlier_summary(setup_, paths_, before);
      outcome_.summary.stopped_by_signal = outcome_.stopped_by;
      if (reporter_->last_validation()) outcome_.summary.last_validation = reporter_->last_validation();
    } else {
      outcome_.summary = summary_of(setup_, results, *reporter_, outcome_.steps, outcome_.stopped_by);
    }
    write_json_file(paths_.summary(), json::write(outcome_.summary), Links::replace);
    const std::string shared = shared_cores(outcome_.summary.core_shares);
    if (!shared.empty() && (setup_.world() > 1 || !told_core_share_)) warn(shared);
    // Later: it is larger, and less is lost with it.
    if (!keeps || !is_there(paths_.timeline())) {
      write_json_file(paths_.timeline(), to_chrome_trace(results.timeline), Links::replace);
    }
    leave_stop_note();
  }
  if (transport_.rank() == Rank{0}) {
    for (const std::string& note :
         tidy_checkpoints(paths_.checkpoints(), setup_.config().checkpoint.keep, paths_.run)) {
      log_->warn("{}", note);
    }
  }
  transport_.barrier();  // nobody leaves before the files are there
  if (reporter_) (void)remove_tree(paths_.live());
  const char* const how = outcome_.stopped_by != 0 ? "stopped" : outcome_.next_plan ? "another plan" : "done";
  log_->info("{} after step {}", how, outcome_.steps);
}

}  // namespace

std::string stopped_text(const TrainOutcome& outcome) {
  if (outcome.stopped_by == 0) return "";
  return fmt::format("stopped by {} after step {}; {} has everything, go on with --resume",
                     sigabbrev_np(outcome.stopped_by), outcome.steps, outcome.last_checkpoint);
}

TrainOutcome train_rank(const RunSetup& setup, const RunPaths& paths, Transport& transport, at::Device device,
                        const Screen& screen, RankPhase& doing, const TellFailure& tell) {
  at::set_num_threads(setup.config().threads_per_rank);  // of this thread's operators
  std::unique_ptr<Overdue> starting = watch_disk(setup, paths, transport, "start-up", tell);
  doing.what = "trying to save";
  const Seconds tried = try_saving(setup, paths, transport, doing.unfinished);
  doing.what = "start-up";
  const std::shared_ptr<spdlog::logger> log =
      open_log(paths.log(transport.rank()), setup.rank_name(transport.rank()));
  log->set_level(log_level(setup.config().log.level));
  log->info("saving was tried in {}", format_duration(tried));
  const auto here = [&] { return fmt::format("{}, {}", setup.rank_name(transport.rank()), doing.what); };
  transport.barrier();  // making a transport waits for the others without a bound
  const std::unique_ptr<Transport> meeting = transport.meeting_place(meeting_options(setup.config()));
  transport.waits().enter(transport.waits().phase());  // the others are shown this one's phase
  std::optional<Trainer> trainer;
  try {
    try {
      trainer.emplace(setup, paths, transport, device, screen, doing, tell, log, std::move(starting));
    } catch (...) {  // what a program's actions throw is placed by the executor
      std::rethrow_exception(with_place(std::current_exception(), here()));
    }
    return trainer->run();
  } catch (...) {
    std::exception_ptr error = without_stack(std::current_exception(), here());
    log->error("{}: {}", doing.what, failure_of(error).message);
    if (const std::string whole = whole_error(error); !whole.empty()) log->error("{}", whole);
    error = LastWords(setup, transport, *meeting, trainer ? &*trainer : nullptr, doing, *log).of(error);
    log->flush();
    tell(doing.what, error);
    std::rethrow_exception(error);
  }
}

}  // namespace stagecraft
