// Errors that the equality tests must find, planted one at a time into runs that are otherwise equal.

#include "test/engine/pipeline_case.h"
#include "test/support/catch.h"

#include <ATen/ATen.h>

#include <atomic>

using namespace stagecraft;
using namespace stagecraft::test;

namespace {

/// What the equality test would say: a difference, or the error that the run ends with.
std::string verdict(const PipelineCase& pipeline, const Mischief& mischief) {
  try {
    return run_locally(pipeline, mischief);
  } catch (const std::exception& error) {
    return error.what();
  }
}

Action* find(std::vector<Action>& list, Op op, MicroBatch micro_batch) {
  for (Action& action : list) {
    if (action.op == op && action.micro_batch == micro_batch) return &action;
  }
  return nullptr;
}

/// Whether the verdict is a difference in the results, not an error on the way.
bool unequal(const std::string& verdict) {
  return verdict.find("differ") != std::string::npos || verdict.find("the oracle has") != std::string::npos;
}

const PipelineCase kStashing{.schedule = "pipedream", .stages = 3};
// Stage 1 begins with a linear layer, which reads its input again.
const PipelineCase kFlush{.schedule = "1f1b", .stages = 3, .cuts = {2, 4}};

}  // namespace

TEST_CASE("the runs that errors are planted into are equal without them", "[planted_errors]") {
  CHECK(run_locally(kStashing) == "");
  CHECK(run_locally(kFlush) == "");
}

TEST_CASE("one wrong version is found", "[planted_errors]") {
  std::atomic<bool> planted = false;  // every rank plants it into its own copy
  const std::string found =
      verdict(kStashing, {.program = [&](LoweredProgram& program) {
                // A version older than the schedule's, in forward and backward.
                for (const Action& read : std::vector<Action>(program.ranks[0])) {
                  if (read.op != Op::backward || read.version.value < 1) continue;
                  Action* forward = find(program.ranks[0], Op::forward, read.micro_batch);
                  Action* backward = find(program.ranks[0], Op::backward, read.micro_batch);
                  --forward->version.value;
                  --backward->version.value;
                  planted = true;
                  return;
                }
              }});
  CHECK(planted);
  INFO(found);
  CHECK(unequal(found));
}

TEST_CASE("one backward that reads another version than its forward is found", "[planted_errors]") {
  // What stashing is there to prevent: the newest version at the backward instead of the stashed one. Not on
  // rank 0: the gradient of the first layer's weights does not read them.
  std::atomic<bool> planted = false;  // every rank plants it into its own copy
  const std::string found = verdict(kStashing, {.program = [&](LoweredProgram& program) {
                                      std::int32_t newest = 0;
                                      for (Action& action : program.ranks[1]) {
                                        if (action.op == Op::step) newest = action.version.value + 1;
                                        if (action.op != Op::backward || action.version.value >= newest)
                                          continue;
                                        action.version = Version{newest};
                                        planted = true;
                                        return;
                                      }
                                    }});
  CHECK(planted);
  INFO(found);
  CHECK(unequal(found));
}

TEST_CASE("one swapped micro-batch is found", "[planted_errors]") {
  // The last stage takes the targets of micro-batches 0 and 1 for each other's, in one step.
  const std::string found = verdict(kFlush, {.segment = [](Rank rank, Segment& segment) {
                                      if (rank.value == 2 && segment.first_step == 4) {
                                        std::swap(segment.micro_batches[0], segment.micro_batches[1]);
                                      }
                                    }});
  INFO(found);
  CHECK(unequal(found));
  CHECK(found.find("step 4") != std::string::npos);
}

TEST_CASE("two backwards in the wrong order are found", "[planted_errors]") {
  // The same sum in another order: only its last bits tell.
  const PipelineCase pipeline{.schedule = "fill_drain", .stages = 1};
  const std::string found =
      verdict(pipeline, {.program = [](LoweredProgram& program) {
                auto& list = program.ranks[0];
                std::swap(*find(list, Op::backward, MicroBatch{1}), *find(list, Op::backward, MicroBatch{2}));
              }});
  INFO(found);
  CHECK(unequal(found));
}

TEST_CASE("one rescaled gradient is found", "[planted_errors]") {
  const std::string found =
      verdict(kFlush, {.gradients = [](std::int64_t step, int layer, const Tensors& gradients) {
                if (step == 3 && layer == 0) gradients.front().mul_(1 + 1e-6);
              }});
  INFO(found);
  CHECK(unequal(found));
}

TEST_CASE("one slot released early is found", "[planted_errors]") {
  std::atomic<bool> planted = false;  // every rank plants it into its own copy
  const std::string found =
      verdict(kFlush, {.program = [&](LoweredProgram& program) {
                // The release of the activation slot of some micro-batch moves from after its backward to
                // before it.
                auto& list = program.ranks[1];
                for (std::size_t i = 0; i + 1 < list.size(); ++i) {
                  if (list[i].op != Op::backward) continue;
                  for (std::size_t k = i + 1; k < list.size() && list[k].op == Op::release; ++k) {
                    if (program.slots[1][list[k].slot.index()].payload != Payload::activation) continue;
                    std::rotate(list.begin() + static_cast<std::ptrdiff_t>(i),
                                list.begin() + static_cast<std::ptrdiff_t>(k),
                                list.begin() + static_cast<std::ptrdiff_t>(k) + 1);
                    planted = true;
                    return;
                  }
                }
              }});
  CHECK(planted);
  INFO(found);
  // Poison from the slot reaches the gradients, unless a sender writes there first.
  CHECK((unequal(found) || found.find("is not finite") != std::string::npos));
}
