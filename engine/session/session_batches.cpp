#include "engine/session/session_batches.h"

#include "base/error.h"
#include "models/check/checked_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace stagecraft {
namespace {

const GivenDataConfig& given_config(const RunConfig& config, const std::string& name) {
  const auto* given = config.data.source.get_if<GivenDataConfig>();
  if (given == nullptr) throw InputError({name, "/data/type"}, "expected \"given\"");
  return *given;
}

}  // namespace

SessionBatches::SessionBatches(const RunSetup& setup, const std::string& name) : setup_(setup) {
  auto batches = std::make_unique<GivenBatches>(
      given_config(setup.config(), name), setup.config().train_batch_size, GivenBatches::Sizes::any_batch);
  batches_ = batches.get();
  const Model& model = setup.inputs().model;
  checked_ = checked_for(std::move(batches), model, *setup.inputs().loss, name);
  const std::vector<BoundarySpec> shapes = boundaries(model, 1);
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    least_samples_.push_back(model.layers[i]->least_samples(shapes[i].values.front().of_one_sample()));
  }
}

Segment SessionBatches::take(SegmentKind kind, std::int64_t first_step, const GivenTensors& batch,
                             const std::vector<std::int64_t>& sizes) {
  // What ranks still read lies in the other place.
  const std::int64_t first = batches_->give(batch, static_cast<std::size_t>(taken_) % GivenBatches::kPlaces);
  check(first);
  Segment segment = cut(kind, first_step, first, sizes);
  ++taken_;
  if (kind == SegmentKind::train) refuse_small(segment);
  return segment;
}

void SessionBatches::check(std::int64_t first) const {
  const Model& model = setup_.inputs().model;
  const Loss& loss = *setup_.inputs().loss;
  std::vector<std::int64_t> all(static_cast<std::size_t>(batches_->samples_given()));
  std::iota(all.begin(), all.end(), first);
  (void)checked_->inputs(Split::train, all);
  if (loss.reads_targets()) (void)checked_->targets(Split::train, all);
  const auto layers = static_cast<int>(model.layers.size());
  (void)read_fields(*checked_, Split::train, model.fields_of(0, layers, &loss), all);
}

Segment SessionBatches::cut(SegmentKind kind, std::int64_t first_step, std::int64_t first,
                            const std::vector<std::int64_t>& sizes) const {
  const std::int64_t most = setup_.config().micro_batch_size;
  const std::int64_t samples = batches_->samples_given();
  std::vector<std::int64_t> parts = sizes;
  if (parts.empty()) {
    for (std::int64_t left = samples; left > 0; left -= most) parts.push_back(std::min(left, most));
  }
  Segment segment{.kind = kind, .first_step = first_step, .group_sizes = {static_cast<int>(parts.size())}};
  std::int64_t at = 0;
  for (const std::int64_t count : parts) {
    if (count < 1 || count > most) {
      throw InputError(
          {"the batch", ""},
          fmt::format("a micro-batch of {} samples, and the pipeline was made for 1 to {}", count, most));
    }
    segment.micro_batches.push_back({.epoch = taken_, .first = first + at, .count = count});
    at += count;
  }
  if (at != samples) {
    throw InputError({"the batch", ""},
                     fmt::format("micro-batches of {} samples in all, and it has {}", at, samples));
  }
  return segment;
}

void SessionBatches::refuse_small(const Segment& segment) const {
  const Model& model = setup_.inputs().model;
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    const std::int64_t least = least_samples_[i];
    const auto small = std::ranges::find_if(
        segment.micro_batches, [&](const MicroBatchRange& range) { return range.count < least; });
    if (small == segment.micro_batches.end()) continue;
    throw InputError({"the batch", ""},
                     fmt::format("a micro-batch of {} samples, and layer \"{}\" ({}) needs {}", small->count,
                                 model.layers[i]->name(), model.layers[i]->facts().type, least));
  }
}

}  // namespace stagecraft
