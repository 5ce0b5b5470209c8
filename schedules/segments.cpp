#include "schedules/segments.h"

#include <fmt/format.h>

#include <algorithm>
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

/// Steps after which the next segment of a run ends that stands before step `step`.
std::int64_t segment_end(const RunShape& shape, std::int64_t step) {
  if (shape.synchronous) return step + 1;
  const std::int64_t full = ceil_div(std::min(shape.batch, shape.samples), shape.micro_batch);
  std::int64_t end = shape.steps;
  const auto drain_every = [&](std::int64_t interval) {
    if (interval > 0 && interval < shape.steps) end = std::min(end, (step / interval + 1) * interval);
  };
  if (validates(shape)) drain_every(shape.validate_every);
  drain_every(shape.checkpoint_every);
  drain_every(std::max<std::int64_t>(1, shape.most_segment_micro_batches / full));
  return end;
}

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
}

bool SegmentWalk::next(Segment& segment) {
  if (validation_due_) {
    validation_due_ = false;
    segment = {.kind = SegmentKind::validate, .first_step = step_, .group_sizes = validation_sizes(shape_)};
    cut(shape_, 0, 0, shape_.validation_samples, segment.micro_batches);
    return true;
  }
  if (step_ >= shape_.steps) return false;
  const std::int64_t end = segment_end(shape_, step_);
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

std::vector<MicroBatchRange> step_micro_batches(const RunShape& shape, std::int64_t step) {
  validate(shape);
  require(step >= 0 && step < shape.steps, "a step within the run", step);
  std::vector<MicroBatchRange> ranges;
  append_step(shape, step, ranges);
  return ranges;
}

std::vector<Segment> distinct_shapes(const RunShape& shape) {
  validate(shape);
  const std::int64_t epoch = steps_per_epoch(shape);
  std::set<std::vector<int>> seen;
  std::vector<Segment> shapes;
  const auto add = [&](std::int64_t first, std::int64_t end) {
    auto sizes = group_sizes(shape, first, end);
    if (seen.insert(sizes).second) shapes.push_back({.first_step = first, .group_sizes = std::move(sizes)});
  };
  if (shape.synchronous) {
    add(0, 1);
    if (shape.steps >= epoch) add(epoch - 1, epoch);
  } else {
    // Sizes follow from a segment's length and from where in it the first epoch ends: most segments are told
    // to be known by these two, without a look at their steps.
    std::set<std::pair<std::int64_t, std::int64_t>> known;
    for (std::int64_t step = 0; step < shape.steps;) {
      const std::int64_t end = segment_end(shape, step);
      const std::int64_t epoch_end = std::min(epoch - step % epoch, end - step + 1);
      if (known.insert({end - step, epoch_end}).second) add(step, end);
      step = end;
    }
  }
  if (validates(shape)) {
    shapes.push_back(
        {.kind = SegmentKind::validate, .first_step = shape.steps, .group_sizes = validation_sizes(shape)});
  }
  return shapes;
}

}  // namespace stagecraft
