#pragma once

// A rank's part in sums of gradients: over the replicas of a stage, and over all layers that hold a tied
// weight. The rank joins a sum with its last backward into the group, as soon as the first layer's gradients
// are there, and waits for it where its list says `reduce` or `tie`. In between the sum goes on beside
// whatever else the rank does.
//
// Who owns what: the accumulators of a stage own the gradients. From the join to the end of the wait the sum
// reads and writes them, so nobody else may; a program has no action in between that would, which its proof
// sees to.

#include "engine/core/rank_program.h"
#include "engine/core/recorder.h"
#include "engine/core/stage.h"
#include "engine/core/staged_model.h"
#include "engine/transport/transport.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace stagecraft {

class GradientSums {
 public:
  /// `stages`: of this rank, ascending. All arguments outlive this. No sum is begun before begin().
  GradientSums(const StagedModel& model, std::vector<Stage>& stages, Transport& transport, at::Device device,
               Recorder& recorder);

  /// Starts a segment, whose first group is of `first_step`. If the program has sums, the transport moves them forward in its background from now
  /// on.
  void begin(const RankProgram& program, std::int64_t first_step);
  /// Ends it, or gives it up: sums that are under way are dropped, which while an exception unwinds is
  /// expected and else a defect that is logged. The transport's background is empty again. The program may
  /// go.
  void end();

  /// Begins the sum of a group's gradients over the replicas of a stage (its place among the rank's). Calls
  /// to what is returned hand in the gradients of a layer; they come from the last layer to the first, in one
  /// micro-batch.
  [[nodiscard]] AfterLayer join(std::size_t stage, Group group);
  /// Begins the sums of the tied weights that the program joins with the action at that position, whose
  /// gradients on this rank are complete. Does nothing elsewhere.
  void join_ties(std::size_t at, Group group);

  /// Carries out Op::reduce: waits for the sum, and brings the buffers of replicas together. A rank that had
  /// no micro-batch in the group joins here, and adds zeros. Throws PeerError.
  void reduce(std::size_t stage, Group group);
  /// Carries out Op::tie, likewise.
  void tie(TieId tie, Group group);

 private:
  /// One layer's parameter, among those that this rank holds.
  struct Place {
    std::size_t stage;
    int layer;
    std::size_t parameter;
  };
  void poll();
  /// `action`: the one that it ends with.
  [[nodiscard]] std::unique_ptr<ReplicaSum> make_sum(const std::vector<Rank>& copies, const Tag& tag,
                                                     Bytes staging, const Action& action);
  void join_tie(TieId tie, Group group);
  /// Of parameters and buffers that the replicas of a stage sum.
  [[nodiscard]] static Bytes bytes_summed(const Stage& stage);

  const StagedModel& model_;
  std::vector<Stage>& stages_;
  Transport& transport_;
  at::Device device_;
  Recorder& recorder_;
  std::int64_t first_step_ = 0;           ///< of the segment
  const RankProgram* program_ = nullptr;  ///< of the segment
  /// By layer of the model, of this rank's stages: the parameters that a reduce sums, all but tied ones.
  std::vector<std::vector<std::size_t>> reduced_;
  std::vector<std::vector<Place>> held_;  ///< by tied weight: the copies on this rank, the last layer first
  // Under way. A stage has one accumulation at a time, a tied weight likewise.
  std::vector<std::unique_ptr<ReplicaSum>> sums_;      ///< by stage of this rank
  std::vector<std::unique_ptr<ReplicaSum>> tie_sums_;  ///< by tied weight
};

}  // namespace stagecraft
