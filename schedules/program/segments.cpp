#include "schedules/program/segments.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

namespace stagecraft {
namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

void require(bool holds, const char* what, std::int64_t found) {
  if (!holds) throw InputError(fmt::format("expected {}, found {}", what, found));
}

void validate(const RunShape& shape) {
  const std::int64_t epoch = steps_per_epoch(shape);
  require(shape.steps <= kMostRunSteps, "no more than 10^15 steps", shape.steps);
  const std::int64_t samples = std::max({shape.samples, shape.batch, shape.validation_samples});
  require(samples <= kMostRunSamples, "no more than 10^15 samples", samples);
  require(shape.micro_batch >= 1, "at least 1 sample in a micro-batch", shape.micro_batch);
  require(shape.micro_batch <= shape.batch, "a micro-batch no larger than train_batch_size",
          shape.micro_batch);
  require(epoch >= 1, "a whole mini-batch of training samples, as the last short one is dropped",
          shape.samples);
  require(shape.steps >= 1, "at least 1 step", shape.steps);
  require(shape.first_step >= 0 && shape.first_step <= shape.steps, "a first step within the run",
          shape.first_step);
  require(shape.validation_samples >= 0, "no negative number of validation samples",
          shape.validation_samples);
  require(shape.validate_every >= 0, "a validation interval of at least 0 steps", shape.validate_every);
  require(shape.checkpoint_every >= 0, "a checkpoint interval of at least 0 steps", shape.checkpoint_every);
  require(shape.synchronous_steps >= 0, "a number of synchronous steps of at least 0",
          shape.synchronous_steps);
  require(shape.most_segment_micro_batches >= 1, "at least 1 micro-batch in a segment",
          shape.most_segment_micro_batches);
  const std::int64_t most =
      ceil_div(std::max(std::min(shape.batch, shape.samples), shape.validation_samples), shape.micro_batch);
  require(most <= kMaxMicroBatches, "fewer micro-batches in a step or validation pass", most);
}

/// Samples of the mini-batch of step `step`.
std::int64_t batch_of(const RunShape& shape, std::int64_t step) {
  const std::int64_t within = step % steps_per_epoch(shape);
  return std::min(shape.batch, shape.samples - within * shape.batch);
}

int micro_batches_of(const RunShape& shape, std::int64_t step) {
  return static_cast<int>(ceil_div(batch_of(shape, step), shape.micro_batch));
}

bool validates(const RunShape& shape) { return shape.validation_samples > 0; }

bool is_multiple(std::int64_t step, std::int64_t interval) { return interval > 0 && step % interval == 0; }

bool validation_due(const RunShape& shape, std::int64_t step) {
  return validates(shape) && (step == shape.steps || is_multiple(step, shape.validate_every));
}

/// An asynchronous run drains at the multiples of these and at its end. Ascending; none is a multiple of
/// another.
std::vector<std::int64_t> drain_intervals(const RunShape& shape) {
  const std::int64_t full = ceil_div(std::min(shape.batch, shape.samples), shape.micro_batch);
  std::vector<std::int64_t> all{shape.checkpoint_every,
                                std::max<std::int64_t>(1, shape.most_segment_micro_batches / full)};
  if (validates(shape)) all.push_back(shape.validate_every);
  std::sort(all.begin(), all.end());
  std::vector<std::int64_t> intervals;
  for (const std::int64_t interval : all) {
    const bool drains = interval > 0 && interval < shape.steps;
    const bool told = std::any_of(intervals.begin(), intervals.end(),
                                  [&](std::int64_t shorter) { return interval % shorter == 0; });
    if (drains && !told) intervals.push_back(interval);
  }
  return intervals;
}

std::int64_t next_multiple(std::int64_t of, std::int64_t after) { return (after / of + 1) * of; }

/// Steps after which the next segment of a run ends that stands before step `step`.
std::int64_t segment_end(const RunShape& shape, const std::vector<std::int64_t>& drains, std::int64_t step) {
  if (shape.synchronous || step < shape.synchronous_steps) return step + 1;
  std::int64_t end = shape.steps;
  for (const std::int64_t interval : drains) end = std::min(end, next_multiple(interval, step));
  return end;
}

/// Finds one of each kind of segment of an asynchronous run behind its synchronous steps: those that differ in
/// length or in where in them the short last step of an epoch stands.
class SegmentKinds {
 public:
  explicit SegmentKinds(const RunShape& shape)
      : shape_(shape),
        drains_(drain_intervals(shape)),
        epoch_(steps_per_epoch(shape)),
        short_steps_(!shape.drop_last && shape.samples % shape.batch != 0) {}

  /// Calls `visit(first step, end)` in the run's order, more than once for some kinds.
  template <class Visit>
  void each(const Visit& visit) const {
    // Drain points and epochs repeat, from wherever one looks, except that the run's end may cut its last segment.
    const std::int64_t begin = shape_.synchronous_steps;
    const std::int64_t end_of_period = std::min(period(), shape_.steps - begin) + begin;
    std::int64_t visited = 0;
    for (std::int64_t step = begin; step < end_of_period;) {
      if (++visited > kMostVisited) refuse();
      const std::int64_t end = segment_end(shape_, drains_, step);
      visit(step, end);
      step = end + equal_behind(step, end);
    }
    std::int64_t last = begin;
    for (const std::int64_t interval : drains_) {
      last = std::max(last, (shape_.steps - 1) / interval * interval);
    }
    visit(last, shape_.steps);
  }

  [[noreturn]] static void refuse() {
    throw InputError(
        "validation.every_steps, checkpoint.every_steps, the drain points between and the epochs of this "
        "asynchronous run fall together so rarely that it has too many different segments to prove; make one "
        "interval a multiple of the other, or a run shorter");
  }

 private:
  static constexpr std::int64_t kMostVisited = 10'000'000;  // about a second

  [[nodiscard]] std::int64_t period() const {
    std::int64_t period = short_steps_ ? std::min(epoch_, shape_.steps) : 1;
    for (const std::int64_t interval : drains_) {
      const std::int64_t times = interval / std::gcd(period, interval);
      if (times > shape_.steps / period) return shape_.steps;
      period *= times;
    }
    return period;
  }

  /// Steps of the segments behind [step, end) that are like it.
  [[nodiscard]] std::int64_t equal_behind(std::int64_t step, std::int64_t end) const {
    const std::int64_t length = end - step;
    const bool regular = !drains_.empty() && length == drains_.front() && step % length == 0;
    const std::int64_t short_step = short_steps_ ? next_multiple(epoch_, step) - 1 : shape_.steps;
    if (!regular || short_step < end) return 0;
    std::int64_t until = std::min(short_step, shape_.steps);
    for (std::size_t i = 1; i < drains_.size(); ++i) until = std::min(until, next_multiple(drains_[i], step));
    return std::max<std::int64_t>(until - end, 0) / length * length;
  }

  const RunShape& shape_;
  std::vector<std::int64_t> drains_;
  std::int64_t epoch_;
  bool short_steps_;  ///< an epoch's last one is
};

std::vector<int> group_sizes(const RunShape& shape, std::int64_t first, std::int64_t end) {
  std::vector<int> sizes;
  for (std::int64_t step = first; step < end; ++step) sizes.push_back(micro_batches_of(shape, step));
  return sizes;
}

std::vector<int> validation_sizes(const RunShape& shape) {
  return {static_cast<int>(ceil_div(shape.validation_samples, shape.micro_batch))};
}

/// Appends `samples` samples from position `first` on, cut into micro-batches.
void cut(const RunShape& shape, std::int64_t epoch, std::int64_t first, std::int64_t samples,
         std::vector<MicroBatchRange>& into) {
  for (std::int64_t done = 0; done < samples; done += shape.micro_batch) {
    into.push_back({epoch, first + done, std::min(shape.micro_batch, samples - done)});
  }
}

void append_step(const RunShape& shape, std::int64_t step, std::vector<MicroBatchRange>& into) {
  const std::int64_t epoch = steps_per_epoch(shape);
  cut(shape, step / epoch, step % epoch * shape.batch, batch_of(shape, step), into);
}

}  // namespace

SegmentWalk::SegmentWalk(const RunShape& shape)
    : shape_(shape), step_(shape.first_step), validation_due_(shape.validation_owed && validates(shape)) {
  validate(shape);
  drains_ = drain_intervals(shape);
}

bool SegmentWalk::next(Segment& segment) {
  if (validation_due_) {
    validation_due_ = false;
    segment = {.kind = SegmentKind::validate, .first_step = step_, .group_sizes = validation_sizes(shape_)};
    cut(shape_, 0, 0, shape_.validation_samples, segment.micro_batches);
    return true;
  }
  if (step_ >= shape_.steps) return false;
  const std::int64_t end = segment_end(shape_, drains_, step_);
  segment = {.first_step = step_, .group_sizes = group_sizes(shape_, step_, end)};
  for (; step_ < end; ++step_) append_step(shape_, step_, segment.micro_batches);
  segment.checkpoint_after = step_ == shape_.steps || is_multiple(step_, shape_.checkpoint_every);
  validation_due_ = validation_due(shape_, step_);
  return true;
}

std::int64_t steps_per_epoch(const RunShape& shape) {
  require(shape.samples >= 1, "at least 1 training sample", shape.samples);
  require(shape.batch >= 1, "a train_batch_size of at least 1", shape.batch);
  return shape.drop_last ? shape.samples / shape.batch : ceil_div(shape.samples, shape.batch);
}

std::int64_t steps_of_epochs(const RunShape& shape, std::int64_t epochs, const InputPlace& place) {
  const std::int64_t epoch = steps_per_epoch(shape);
  if (epoch > 0 && epochs > kMostRunSteps / epoch) {
    throw InputError(place, fmt::format("expected at most {} epochs, which are {} steps each, found {}",
                                        kMostRunSteps / epoch, epoch, epochs));
  }
  return epochs * epoch;
}

std::vector<MicroBatchRange> step_micro_batches(const RunShape& shape, std::int64_t step) {
  validate(shape);
  require(step >= 0 && step < shape.steps, "a step within the run", step);
  std::vector<MicroBatchRange> ranges;
  append_step(shape, step, ranges);
  return ranges;
}

std::vector<Segment> distinct_shapes(const RunShape& shape) {
  validate(shape);
  constexpr std::size_t kMostShapes = 10'000;
  const std::int64_t epoch = steps_per_epoch(shape);
  std::set<std::vector<int>> seen;
  std::vector<Segment> shapes;
  const auto add = [&](std::int64_t first, std::int64_t end) {
    auto sizes = group_sizes(shape, first, end);
    if (!seen.insert(sizes).second) return;
    if (seen.size() > kMostShapes) SegmentKinds::refuse();
    shapes.push_back({.first_step = first, .group_sizes = std::move(sizes)});
  };
  const std::int64_t synchronous =
      shape.synchronous ? shape.steps : std::min(shape.synchronous_steps, shape.steps);
  if (synchronous > 0) {
    add(0, 1);
    if (synchronous >= epoch) add(epoch - 1, epoch);
  }
  if (synchronous < shape.steps) {
    // Sizes follow from a segment's length and from where in it the first epoch ends: most segments are told
    // to be known by these two, without a look at their steps.
    std::set<std::pair<std::int64_t, std::int64_t>> known;
    SegmentKinds(shape).each([&](std::int64_t first, std::int64_t end) {
      const std::int64_t epoch_end = std::min(epoch - first % epoch, end - first + 1);
      if (known.insert({end - first, epoch_end}).second) add(first, end);
    });
  }
  if (validates(shape)) {
    shapes.push_back(
        {.kind = SegmentKind::validate, .first_step = shape.steps, .group_sizes = validation_sizes(shape)});
  }
  return shapes;
}

}  // namespace stagecraft
