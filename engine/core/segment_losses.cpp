#include "engine/core/segment_losses.h"

#include "base/error.h"

#include <algorithm>
#include <numeric>

namespace stagecraft {

SegmentLosses::SegmentLosses(const StagedModel& model, const RankProgram& program, const Segment& segment,
                             const SampleOrder& order, const UnitCounter* units, at::Device device)
    : program_(program),
      segment_(segment),
      units_(units),
      numbers_(loss_numbers(model.loss)),
      device_(device),
      groups_(program.groups.size()) {
  STAGECRAFT_CHECK(program.header.kind == segment.kind && program.header.group_sizes == segment.group_sizes &&
                       program.group_of.size() == segment.micro_batches.size(),
                   "the program was made for another segment");
  sizes_.reserve(segment.micro_batches.size());
  for (std::size_t mb = 0; mb < segment.micro_batches.size(); ++mb) {
    const BatchSize& size = sizes_.emplace_back(order.size(segment.micro_batches[mb]));
    GroupState& group = groups_[program.group_of[mb].index()];
    group.samples += size.samples;
    group.tokens += model.model.sample.tokens(size);
  }
}

double SegmentLosses::share_of(MicroBatch micro_batch) {
  const Group number = program_.group_of[micro_batch.index()];
  const GroupFacts& its = program_.groups[number.index()];
  GroupState& group = groups_[number.index()];
  const auto share = [](std::int64_t part, std::int64_t whole) {
    return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
  };
  const auto of = [&](int mb) -> const MicroBatchRange& { return segment_.micro_batches[to_size(mb)]; };
  // Units per sample are the same for all samples, so they cancel out of the share.
  if (units_ == nullptr) return share(of(micro_batch.value).count, group.samples);
  if (group.units.empty()) {
    for (int k = 0; k < its.size; ++k) group.units.push_back(units_->of(of(its.first + k)));
  }
  return share(group.units[to_size(micro_batch.value - its.first)],
               std::accumulate(group.units.begin(), group.units.end(), std::int64_t{0}));
}

void SegmentLosses::add(MicroBatch micro_batch, const LossValue& value) {
  std::optional<LossSum>& sum = groups_[program_.group_of[micro_batch.index()].index()].loss;
  if (!sum) sum.emplace(numbers_, device_);
  sum->add(value);
}

bool SegmentLosses::has_no_unit(const GroupState& group) const {
  return !program_.training() && group.loss && !group.units.empty() &&
         std::all_of(group.units.begin(), group.units.end(), [](std::int64_t units) { return units == 0; });
}

at::Tensor SegmentLosses::report(Group number, Boundaries& boundaries) {
  GroupState& group = groups_[number.index()];
  const Placement& placement = program_.header.placement;
  const StageId last_stage{placement.stages() - 1};
  const std::vector<Rank>& reporters = placement.ranks[last_stage.index()];
  const bool gathers = program_.rank == placement.ranks[0].front();
  LossSum all(numbers_, device_);
  for (std::size_t replica = 0; replica < reporters.size(); ++replica) {
    const Tag tag = Tag::loss(last_stage, number, static_cast<int>(replica));
    const bool mine = reporters[replica] == program_.rank;
    if (mine && has_no_unit(group)) group.loss->spoil();
    if (mine && !gathers) {
      if (!group.loss) group.loss.emplace(numbers_, device_);  // left before its first micro-batch
      boundaries.put(tag, group.loss->values());
      return {};
    }
    // A replica may have no micro-batch of the group.
    if (mine && group.loss) all.add(group.loss->values());
    if (!mine && boundaries.has(tag)) all.add(boundaries.take(tag));
  }
  group.loss.reset();
  return all.values();
}

}  // namespace stagecraft
