#pragma once

// A plan's stages as other frameworks for decoders name them: which has the embedding, which blocks, which the
// head. A block's layers are found by the number in their names (model.layers.3, model.layers.3.mlp; transformer.h.3;
// block3.attention), as PyTorch names the members of a ModuleList.

#include "base/error.h"
#include "partitioner/plan/plan.h"

#include <string>
#include <vector>

namespace stagecraft {

/// Of one stage.
struct DecoderPart {
  bool embedding = false;           ///< all layers in front of the first block
  int first_block = 0, blocks = 0;  ///< numbers of blocks: [first_block, first_block + blocks)
  bool head = false;                ///< all layers behind the last one: the norm, the projection, the loss
};

/// Which pipeline rank has which stages.
enum class StagesOnRanks {
  loop,  ///< stage s on rank s mod ranks
  v      ///< two per rank, from the first rank to the last and back
};

struct DecoderParts {
  std::vector<DecoderPart> stages;
  int ranks = 0;  ///< of one pipeline; a rank of several replicas counts once
  StagesOnRanks on_ranks = StagesOnRanks::loop;
};

/// `names`: of all layers of the plan's model, in their order, as its profile has them. Throws InputError at
/// `of_names` for a model that is no such row, at `place` for a stage that begins within a block or parts the embedding or the head,
/// stages with unequal replicas, and stages that lie on ranks in another way.
[[nodiscard]] DecoderParts decoder_parts(const Plan& plan, const std::vector<std::string>& names,
                                         const InputPlace& place, const InputPlace& of_names);

/// Megatron-LM's --pipeline-model-parallel-layout: "Ett|tt|ttL". Throws InputError at `place` for a V.
[[nodiscard]] std::string megatron_layout(const DecoderParts& parts, const InputPlace& place);

/// torchtitan's parallelism.module_fqns_per_model_part, as JSON, which is Python as well.
[[nodiscard]] std::string torchtitan_parts(const DecoderParts& parts);

}  // namespace stagecraft
