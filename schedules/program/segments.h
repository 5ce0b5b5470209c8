#pragma once

// A run as a sequence of program shapes: which mini-batches, in which groups, with validation and drain
// points between. All of it follows from the data's length and the configuration, so it is known, and proved,
// before the run.

#include "schedules/program/program.h"

#include <cstdint>
#include <vector>

namespace stagecraft {

/// Most micro-batches of an asynchronous segment: after so many the run drains by itself, at a multiple of
/// whole steps, so that no program outgrows memory. A drain costs one fill and drain of the pipeline, little
/// against these; and a signal waits for the next one.
inline constexpr std::int64_t kMostSegmentMicroBatches = 1024;

/// No run comes near: so many samples or steps are a slip of the pen, and sums of such numbers still fit into
/// 64 bits.
inline constexpr std::int64_t kMostRunSamples = 1'000'000'000'000'000;
inline constexpr std::int64_t kMostRunSteps = 1'000'000'000'000'000;

struct RunShape {
  std::int64_t samples = 0;  ///< of the training split, one epoch
  std::int64_t validation_samples = 0;
  std::int64_t batch = 0;             ///< train_batch_size: samples of one optimizer step
  std::int64_t micro_batch = 0;       ///< samples of one micro-batch
  std::int64_t steps = 0;             ///< optimizer steps of the whole run
  std::int64_t validate_every = 0;    ///< steps; 0: never, except at the end when there is validation data
  std::int64_t checkpoint_every = 0;  ///< steps; 0: only at the end
  std::int64_t first_step = 0;        ///< steps already made (resume)
  bool validation_owed = false;       ///< resume: the validation due after first_step was not made yet
  bool synchronous = true;
  /// Of an asynchronous run: it drains after each of its first so many steps, so that they are synchronous.
  std::int64_t synchronous_steps = 0;
  bool drop_last = false;  ///< leave out an epoch's last, short mini-batch
  std::int64_t most_segment_micro_batches = kMostSegmentMicroBatches;  ///< of an asynchronous segment
};

/// Micro-batches whose data a rank with the first or last stage reads before the program asks for them. The
/// memory proof counts them.
inline constexpr int kReadAhead = 2;

/// The samples of one micro-batch: positions [first, first + count) in the epoch's shuffled order.
struct MicroBatchRange {
  std::int64_t epoch = 0;  ///< of a validation pass: 0
  std::int64_t first = 0;
  std::int64_t count = 0;
  bool operator==(const MicroBatchRange&) const = default;
};

/// A stretch of the run between two drain points (asynchronous), one step (synchronous), or one validation
/// pass.
struct Segment {
  SegmentKind kind = SegmentKind::train;
  /// The optimizer step its first group makes; of a validation pass the steps made before it.
  std::int64_t first_step = 0;
  std::vector<int> group_sizes{};                ///< micro-batches of each step
  std::vector<MicroBatchRange> micro_batches{};  ///< in order
  bool checkpoint_after = false;  ///< due after this training segment, before a validation that follows
};

/// Walks a run segment by segment without holding it: segment i+1 follows from segment i.
///
/// Drain points are the multiples of `validate_every` (where there is validation data), `checkpoint_every`
/// and (asynchronous) the self-made interval above, counted in steps from the run's start, each of the first
/// synchronous_steps, and the run's end:
/// a resumed run drains where the uninterrupted one did. A validation pass follows the drain points at which
/// one is due and the run's end.
class SegmentWalk {
 public:
  /// Throws InputError for numbers that make no run.
  explicit SegmentWalk(const RunShape& shape);
  /// False at the end of the run; `segment` is then left alone.
  [[nodiscard]] bool next(Segment& segment);

 private:
  RunShape shape_;
  std::vector<std::int64_t> drains_;  ///< intervals between drain points
  std::int64_t step_ = 0;
  bool validation_due_ = false;
};

/// Steps in one epoch: the short last mini-batch counts unless it is dropped. Needs samples, batch and
/// drop_last only; 0 when everything is dropped. Throws InputError when samples or batch is not positive.
[[nodiscard]] std::int64_t steps_per_epoch(const RunShape& shape);

/// The steps of `epochs` passes over the data. Throws InputError at `place` where they are more than
/// kMostRunSteps.
[[nodiscard]] std::int64_t steps_of_epochs(const RunShape& shape, std::int64_t epochs,
                                           const InputPlace& place = {});

/// The micro-batches of step `step` of a run: train_batch_size samples of the epoch's order cut into
/// micro-batches, the last one short where it does not divide.
[[nodiscard]] std::vector<MicroBatchRange> step_micro_batches(const RunShape& shape, std::int64_t step);

/// The distinct (kind, group_sizes) of a run from step 0 on, wherever it resumes: what must be generated,
/// lowered and proved before it starts. `micro_batches` are left empty. Cheap: follows the run only until it
/// repeats, and from one place where something differs to the next. Throws InputError where drain points and
/// epochs fall together so rarely that there are too many shapes to prove.
[[nodiscard]] std::vector<Segment> distinct_shapes(const RunShape& shape);

}  // namespace stagecraft
