#pragma once

// A pipeline that is stepped from outside: a program brings a batch, this process's ranks carry out one optimizer step
// (or a validation) of it, and the program goes on. What a run does from a config and a data set, one step at a time:
// same plan, proof, workers and checkpoints, so the same bits.

#include "engine/core/worker.h"
#include "engine/records/metrics/manifest.h"
#include "engine/records/metrics/run_paths.h"
#include "engine/run/resolve/plan_request.h"
#include "engine/run/resolve/setup.h"
#include "engine/session/rank_crew.h"
#include "engine/session/session_batches.h"
#include "engine/session/step_under_way.h"
#include "engine/transport/factory.h"
#include "models/data/given.h"

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace stagecraft {

/// What the session's ranks are: threads of this process, or this process is one of them.
struct SessionRanks {
  std::unique_ptr<Transport> transport;  ///< of this process's rank; null: threads
  int machine_rank = 0;                  ///< among the processes of this machine
  int machine_world = 1;                 ///< these

  [[nodiscard]] bool threads() const { return transport == nullptr; }
};

/// Used by one thread at a time, its caller's; ranks have threads of their own. A step that was begun is under way while
/// the caller goes on, and every other call waits for it. An error inside a step ends the session: later calls throw
/// InputError that says why, but for state() where the ranks still hold the state of one step. Numbers that are not
/// finite, found before any weight changed, do not: ranks that are threads go on from that state. Where nobody has heard
/// of the error from the step itself, the next call throws it; steps that were begun behind it were not made.
class Session {
 public:
  /// Called about every 50 ms on the caller's thread while ranks work; may not throw.
  using Meanwhile = std::function<void()>;
  /// Steps: one that ranks carry out, and one for those that are through it.
  static constexpr std::size_t kMostUnderWay = 2;

  /// `config` as run.json, with data of type "given"; `first`: a batch as the first one will be, which the model is
  /// measured with where the config names no plan. `checkpoint`: a folder to go on from; "" begins anew. Collective
  /// over processes: rank 0's config, plan and programs are everybody's. Throws InputError, RefusedError: the same on
  /// all processes.
  Session(const Json& config, const GivenTensors& first, SessionRanks ranks, const std::string& checkpoint,
          const Meanwhile& meanwhile);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// Begins an optimizer step, or a validation, with a copy of `batch`, behind the one that is under way. Waits where
  /// more than that one are. `sizes`: samples of each micro-batch, which together are the batch; empty: as the config
  /// cuts it, the last one short. `rate`: the learning rate in place of the config's. Collective.
  [[nodiscard]] std::shared_ptr<StepUnderWay> begin(SegmentKind kind, const GivenTensors& batch,
                                                    const std::vector<std::int64_t>& sizes,
                                                    std::optional<double> rate, const Meanwhile& meanwhile);
  /// Of processes: this one has no batch for what the others begin, and why. Throws InputError with it, as they do.
  void refuse(const std::string& why, const Meanwhile& meanwhile);
  /// Waits for what is under way.
  void settle(const Meanwhile& meanwhile);
  /// The same, and leaves errors to the next call.
  void await_all() noexcept;
  /// One optimizer step, from beginning to end.
  [[nodiscard]] SessionStep step(const GivenTensors& batch, const std::vector<std::int64_t>& sizes,
                                 std::optional<double> rate, const Meanwhile& meanwhile);
  /// The loss of a batch in evaluation mode. Collective.
  [[nodiscard]] SessionStep evaluate(const GivenTensors& batch, const std::vector<std::int64_t>& sizes,
                                     const Meanwhile& meanwhile);
  /// Of processes: tells the others that this one goes, and why, so that they wait for nothing.
  void abandon(const std::string& why) noexcept;
  /// Ends the step under way with an error, from any thread.
  void interrupt() noexcept;

  [[nodiscard]] const RunSetup& setup() const { return *setup_; }
  [[nodiscard]] const std::vector<std::string>& notes() const { return notes_; }  ///< for people
  [[nodiscard]] std::int64_t steps() const { return steps_; }                     ///< made or under way
  /// Whether this process's stages read batches.
  [[nodiscard]] bool reads_data() const;
  /// This process is one of several.
  [[nodiscard]] bool is_process() const { return process_.has_value(); }
  [[nodiscard]] bool is_first() const { return !process_ || *process_ == Rank{0}; }

  /// Copies of the weights and buffers that this process holds, by their names in PyTorch (captured models) or as
  /// "layer.parameter"; a tied weight stands there once. Throws InputError where no whole step's state is left.
  [[nodiscard]] std::map<std::string, at::Tensor> state(const Meanwhile& meanwhile);
  /// Sets those that this process holds, and leaves the optimizer's state alone; `weights` may have more. Throws
  /// InputError for one that is missing or of another shape.
  void set_state(const std::map<std::string, at::Tensor>& weights, const Meanwhile& meanwhile);
  /// Of all weights that this process could hold, by name: what processes compare.
  [[nodiscard]] std::vector<std::string> state_names() const;

  /// Writes a checkpoint of the present step into the run directory `path`, as `train` does. Collective. Returns its
  /// folder. Checkpoints of later steps get another name. `beside`: on the first process, while it holds the directory,
  /// writes what else belongs there. Throws InputError where it cannot be written or the directory is another model's,
  /// and TakenOverError where another process has saved there since this session did, or was loaded from there: what was
  /// there stays, and the session goes on.
  /// `rate`: what its steps are given in place of the config's, for whoever loads it.
  std::string save(
      const std::string& path, const Meanwhile& meanwhile, const std::function<void()>& beside = [] {},
      const std::optional<GivenRate>& rate = std::nullopt);

  /// Collective over processes: everybody's text, in rank order.
  [[nodiscard]] std::vector<std::string> gather(const std::string& mine, const Meanwhile& meanwhile);

 private:
  struct RankState;
  void start(const Json& config, const GivenTensors& first, const std::string& checkpoint,
             const Meanwhile& meanwhile);
  /// Ends the ranks.
  void leave() noexcept;
  void resolve_setup(const Json& config, const GivenTensors& first, const std::string& checkpoint);
  void hear_of_setup(const std::string& text, const Json& own);
  using States = std::vector<std::map<int, LayerState>>;  ///< by layer, of each of this process's ranks
  /// The ranks begin at `checkpoint`, or at `states`, or anew where both are empty.
  void make_workers(const std::string& checkpoint, const States& states, const Meanwhile& meanwhile);
  /// Behind a step that changed no weight: the ranks begin again from what they hold. False where they cannot.
  [[nodiscard]] bool begin_again(const Meanwhile& meanwhile);
  void failed(std::size_t place, const std::string& doing, const std::exception_ptr& error);
  /// Waits until at most so many steps are under way, and throws an error that nobody has heard of.
  void look_back(std::size_t most, const Meanwhile& meanwhile);
  /// Behind an error, when nothing is under way: the ranks hold the state of `step`, or the session has ended.
  void go_back_to(std::int64_t step, const std::exception_ptr& error, const Meanwhile& meanwhile);
  /// Throws InputError after an error.
  void require_whole() const;
  /// Of processes: that of a batch which all of them take.
  [[nodiscard]] Segment agreed_segment(SegmentKind kind, const GivenTensors& batch,
                                       const std::vector<std::int64_t>& sizes, const Meanwhile& meanwhile);
  /// Of processes, before a step: all have a batch of the same sizes, or none makes the step. `mine`: the sizes, or
  /// `why` there is none. Throws the same InputError on all of them.
  void agree_on_batch(const std::string& mine, const std::string& why, const Meanwhile& meanwhile);
  /// What each process does by itself before all go on: where one throws, all throw its error, and go on as before.
  void all_or_none(const std::string& doing, const std::function<void()>& work, const Meanwhile& meanwhile);
  /// Throws InputError where the directory has checkpoints of another model, and this session did not begin there.
  void require_same_model(const RunPaths& paths) const;
  void on_ranks(const std::string& doing, const RankCrew::Task& task, const Meanwhile& meanwhile);

  SessionRanks given_;
  std::optional<World> world_;
  std::optional<Rank> process_;  ///< this process's rank, where it is one
  std::unique_ptr<RunSetup> setup_;
  std::unique_ptr<SessionBatches> batches_;
  std::vector<std::string> notes_;
  std::map<std::string, std::string> starts_;  ///< by run directory: the holder that this session knows of
  std::vector<std::unique_ptr<RankState>> ranks_;  ///< of this process
  std::function<void(Rank, const std::string&)> fail_all_;
  std::deque<std::shared_ptr<StepUnderWay>> under_way_;
  std::int64_t steps_ = 0;
  std::string broken_;  ///< why nothing goes on
  bool whole_ = true;   ///< the ranks hold the state of one step
  std::unique_ptr<RankCrew> crew_;
};

}  // namespace stagecraft
