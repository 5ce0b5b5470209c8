#pragma once

// The tensors between stages on one rank: receive slots, sends under way, and hand-offs between stages of the
// same rank. Everything goes by its tag, wherever it comes from, as one tensor (models/tensors/bundle.h). What a stage
// makes goes to its neighbours and, where the program has skips, directly to other stages: each link between two
// stages is a boundary of its own.

#include "engine/core/links.h"
#include "engine/core/rank_program.h"
#include "engine/core/staged_model.h"
#include "engine/transport/transport.h"
#include "schedules/program/program.h"

#include <cstdint>
#include <map>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

namespace stagecraft {

class Boundaries {
 public:
  /// `micro_batch_size`: samples of a full one. Slots lie on
  /// `device`. Model and loss outlive this.
  Boundaries(const StagedModel& model, const Placement& placement, std::int64_t micro_batch_size,
             at::Device device, Transport& transport, bool poison_released);

  /// Starts a segment. Slots of one kind share their memory over all segments. Throws InternalError where the
  /// segment before left something behind.
  void begin(const RankProgramPtr& program);

  // Transfers. `size`: of the micro-batch; a smaller one uses the front of its slot.
  void post_receive(const Tag& tag, Slot slot, const BatchSize& size);
  void wait_receive(const Tag& tag);
  void start_send(const Tag& tag);
  void wait_send(const Tag& tag);
  void release(Slot slot);

  /// A tensor made on this rank: to be sent, or taken by another of its stages.
  void put(const Tag& tag, at::Tensor tensor);
  [[nodiscard]] bool has(const Tag& tag) const { return ready_.contains(tag); }
  /// The tensor of `tag`. One that was handed over leaves; one that was received stays in its slot.
  [[nodiscard]] at::Tensor take(const Tag& tag);

  // The same of activations and gradients, which are packed here and unpacked there, link by link. A bundle has
  // all values between two layers, undefined where they bypass the stage. `size`: of the micro-batch.
  void put_outputs(StageId stage, MicroBatch micro_batch, const Bundle& outputs);
  [[nodiscard]] Bundle take_inputs(StageId stage, MicroBatch micro_batch, const BatchSize& size);
  void put_input_gradients(StageId stage, MicroBatch micro_batch, const Bundle& gradients);
  [[nodiscard]] Bundle take_output_gradients(StageId stage, MicroBatch micro_batch, const BatchSize& size);

  /// Throws InternalError when a segment has left something behind.
  void check_empty() const;

 private:
  using SlotKind = std::tuple<Payload, StageId, StageId, std::int32_t>;
  struct Transfer {
    at::Tensor tensor;  ///< stays until the transfer is over
    RequestPtr request;
  };
  struct SlotState {
    at::Tensor memory;
    Tag holds;
    bool used = false;
  };
  [[nodiscard]] at::Tensor allocate(const SlotInfo& info);
  /// Of the program's skips.
  void find_links(const std::vector<Skip>& skips);
  /// What a link carries by `payload`, for a micro-batch of that size.
  [[nodiscard]] const BoundarySpec& spec(Payload payload, StageId from, StageId to, const BatchSize& size);
  [[nodiscard]] const BoundarySpec& spec(const Tag& tag, const BatchSize& size) {
    return spec(tag.payload, tag.from, tag.to, size);
  }
  void finish(std::unordered_map<Tag, Transfer>& transfers, const Tag& tag);

  Placement placement_;
  at::Device device_;
  Transport& transport_;
  bool poison_;
  const Model& model_;
  std::vector<std::pair<int, int>> stage_layers_;
  BatchSize full_;             ///< of a full micro-batch
  std::int64_t loss_numbers_;  ///< of a report

  /// A link with the places that its gradients have among those of their bundles.
  struct Link {
    StageLink ends;
    std::vector<std::size_t> sent_gradients, received_gradients;
  };
  struct LinkSpecs {
    BoundarySpec activation, gradient;
  };
  std::vector<Skip> skips_;  ///< that the links were found for
  std::vector<Link> links_;
  std::vector<BoundarySpec> before_;    ///< the bundle before each stage, of full micro-batches
  std::vector<std::size_t> gradients_;  ///< how many of its values have one
  std::map<BatchSize, std::vector<LinkSpecs>> specs_;  ///< by size, then as links_

  RankProgramPtr program_;              ///< that slots_ are laid out for; null: none yet
  std::map<SlotKind, Tensors> memory_;  ///< of this segment's slots, from the one before where it had them
  std::vector<SlotState> slots_;
  std::unordered_map<Tag, Transfer> receives_, sends_;
  std::unordered_map<Tag, std::pair<at::Tensor, bool>> ready_;  ///< and whether it lies in a slot
};

}  // namespace stagecraft
