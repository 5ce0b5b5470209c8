// Interleaved 1F1B: every rank holds several stages, v times smaller, and a micro-batch goes round the ranks
// v times (Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using
// Megatron-LM", arXiv 2104.04473, section 2.2.2, figure 4). Fill and drain take 1/v of 1F1B's time, at v
// times the messages and (p + (p - 1)/v) micro-batches' activations on the first rank.
//
// The paper wants the micro-batches of a step to be a multiple of the ranks. Here they come in rounds of at
// least as many, nearly equal (looped.h); a rank's first backward comes after as many forwards as it takes
// the first micro-batch of the first round to go all the way round and back.

#include "schedules/generators/looped.h"
#include "schedules/generators/registry.h"

namespace stagecraft {
namespace {

ScheduleProgram build_interleaved_1f1b(const ScheduleRequest& request) {
  return looped_program("interleaved_1f1b", request, rounds_of, [](LoopedRank& rank) {
    const VirtualStages& shape = rank.shape;
    // One way round for every stage but the last; of that the rest of the ranks, there and back.
    const int round = rank.rounds.empty() ? 0 : rank.rounds.front();
    const int there_and_back = (shape.virtual_stages > 1 ? 2 : 1) * (shape.ranks - 1 - rank.position);
    const int ahead = (shape.virtual_stages - 1) * round + there_and_back;
    for (int k = 0; k < ahead; ++k) rank.add(Op::forward, k);
    for (int k = 0; k < rank.total(); ++k) {
      rank.add(Op::forward, k + ahead);
      rank.add(Op::backward, k);
    }
  });
}

}  // namespace

Schedule interleaved_1f1b_schedule() {
  return {.name = "interleaved_1f1b",
          .summary = "1F1B over v stages per rank: 1/v of the bubble, v times the messages",
          .paper = "Megatron-LM, arXiv 2104.04473",

          .placement = PlacementKind::loop,
          .virtual_stages = 2,
          .build = build_interleaved_1f1b};
}

}  // namespace stagecraft
