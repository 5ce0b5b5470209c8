#pragma once

// What a segment's micro-batches weigh, and the loss of each of its groups: a rank of the last stage adds up
// those of its micro-batches, and the rank that reports gathers the parts.

#include "engine/core/boundaries.h"
#include "engine/core/loss_sum.h"
#include "engine/core/rank_program.h"
#include "engine/core/staged_model.h"
#include "engine/core/unit_counter.h"
#include "models/data/sample_order.h"
#include "schedules/program/segments.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace stagecraft {

class SegmentLosses {
 public:
  /// `order` and `units` are of the segment's split; `units` null: micro-batches weigh as many samples as
  /// they have. All arguments outlive this.
  SegmentLosses(const StagedModel& model, const RankProgram& program, const Segment& segment,
                const SampleOrder& order, const UnitCounter* units, at::Device device);

  [[nodiscard]] const BatchSize& size_of(MicroBatch micro_batch) const {
    return sizes_.at(micro_batch.index());
  }
  [[nodiscard]] std::int64_t samples(Group group) const { return groups_[group.index()].samples; }
  /// Of the samples, padding among them; 0: inputs are no tokens.
  [[nodiscard]] std::int64_t tokens(Group group) const { return groups_[group.index()].tokens; }

  /// Of its group, for a mean. Where samples weigh differently the first call of a group reads the labels of
  /// all its micro-batches, on the calling thread.
  [[nodiscard]] double share_of(MicroBatch micro_batch);
  /// Of a forward on the last stage.
  void add(MicroBatch micro_batch, const LossValue& value);

  /// Carries out Op::report_loss: hands this rank's part to `boundaries`, or, on the rank that reports, takes
  /// the others from there. Returns [loss, correct, terms...] of the group, on the device; undefined on ranks that only
  /// hand theirs on.
  [[nodiscard]] at::Tensor report(Group group, Boundaries& boundaries);

 private:
  struct GroupState {
    std::vector<std::int64_t> units;  ///< of its micro-batches, once they were asked for
    std::int64_t samples = 0;
    std::int64_t tokens = 0;
    std::optional<LossSum> loss;  ///< of its micro-batches so far
  };
  /// Whether a validation has nothing that its mean could be of: no label counts.
  [[nodiscard]] bool has_no_unit(const GroupState& group) const;

  const RankProgram& program_;
  const Segment& segment_;
  const UnitCounter* units_;
  std::size_t numbers_;  ///< of a report
  at::Device device_;
  std::vector<BatchSize> sizes_;  ///< by micro-batch
  std::vector<GroupState> groups_;
};

}  // namespace stagecraft
