#include "engine/run/start/spares.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <vector>

namespace stagecraft {
namespace {

/// On a transport that carries nothing else.
const Tag kEnd = Tag::activation(StageId{0}, MicroBatch{0});

}  // namespace

int await_end(Transport& everybody) {
  const InPhase waiting(everybody.waits(), Phase::spare);
  const at::Tensor stopped_by = at::empty({1}, at::kInt);
  const RequestPtr end = everybody.post_receive(Rank{0}, kEnd, stopped_by);
  everybody.wait(*end);
  return stopped_by.item<int>();
}

void dismiss_spares(Transport& everybody, int first_spare, int stopped_by) {
  const at::Tensor word = at::full({1}, stopped_by, at::kInt);
  std::vector<RequestPtr> sends;
  for (int r = first_spare; r < everybody.world(); ++r)
    sends.push_back(everybody.post_send(Rank{r}, kEnd, word));
  for (const RequestPtr& send : sends) everybody.wait(*send);
}

}  // namespace stagecraft
